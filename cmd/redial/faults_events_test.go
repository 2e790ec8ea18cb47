package main

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// bothFamilies are those of rules in pods.
var bothFamilies = []string{"4", "6"}

// carryOut does what an event says and returns when it is a fact.
func (s *trial) carryOut(e event) {
	s.t.Helper()
	s.ledger.say("%v", e)
	if !e.ends {
		s.ledger.begin(e.kind)
	}
	switch {
	case e.kind == faultBacklog:
		s.stall(e)
	case slices.Contains(backendFaults, e.kind):
		s.breakOrMend(e)
	case e.kind == faultListing:
		s.takeAway(e.pod)
		s.show()
		s.giveBack(e)
	case e.kind == faultFDs:
		s.starve()
	case e.kind == faultRestart:
		s.restart()
	case e.kind == faultKill:
		s.kill()
	case e.kind == faultFlush:
		s.flush(e.which)
	case e.kind == faultTracking:
		s.forget()
	case e.kind == faultBroken:
		s.misspell(e.which)
	default:
		s.show()
	}
	if !slices.Contains(waysToFeel, e.kind) {
		s.ledger.feel(e.kind, 1) // redial has done what it asks for
	}
}

// waysToFeel are the faults whose effect is counted where it is.
var waysToFeel = append(slices.Clone(backendFaults), faultFDs, faultFlush, faultTracking)

// takeAway waits, before a pod becomes useless, until no connection is being opened that has begun when those that are
// left were useless themselves: it may have found that out and not ask them again.
func (s *trial) takeAway(pod int) {
	s.t.Helper()
	if !s.plan.pods[pod].good() {
		s.awaitDialsWithout(pod)
	}
}

func (s *trial) awaitDialsWithout(pod int) {
	s.t.Helper()
	since := time.Now()
	for _, i := range s.plan.anchors(pod) {
		if s.goodSince[i].Before(since) {
			since = s.goodSince[i]
		}
	}
	s.await("connections that know others as useless only", func() bool { return s.ledger.settled(since) })
}

func (s *trial) giveBack(e event) {
	if e.kind != faultSlow && s.plan.pods[e.pod].good() {
		s.goodSince[e.pod] = time.Now()
	}
}

func (s *trial) breakOrMend(e event) {
	s.t.Helper()
	if e.ends {
		s.pods[e.pod].mend(e)
		s.giveBack(e)
		return
	}
	if e.kind != faultSlow {
		s.takeAway(e.pod)
	}
	s.pods[e.pod].breakIt(e, s.pace)
}

// stall keeps a backend from accepting, for a while. What is in its queue then is connected and waits for the greeting, so
// the fault has to be over before others are waited for.
func (s *trial) stall(e event) {
	s.t.Helper()
	s.awaitDialsWithout(e.pod)
	pod := s.pods[e.pod]
	gate := &pod.mode.gate
	before := pod.overflows()
	gate.Lock()
	if e.which == 2 {
		defer pod.fillQueue()()
	}
	for range 3 {
		s.pace(30)
	}
	s.ledger.feel(faultBacklog, pod.overflows()-before+pod.queued())
	gate.Unlock()
	s.giveBack(e)
}

// shortagePatience is how long a shortage may be without being noticed, on a loaded machine.
const shortagePatience = 5 * time.Second

// starve leaves redial a few file descriptors for a while that is shorter than its patience with dials. Clients of TCP wait; a
// datagram for which there is no descriptor is lost, and nothing is left to send it later.
func (s *trial) starve() {
	s.t.Helper()
	pid := s.redial.cmd.Process.Pid
	var was unix.Rlimit
	require.NoError(s.t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was))
	end := s.ledger.suffer(outage{what: faultFDs, udp: true})
	before := s.shortages()
	few := was
	few.Cur = uint64(countFDs(s.t, s.redial)) + 2
	require.NoError(s.t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil))
	for began := time.Now(); s.shortages() == before && time.Since(began) < shortagePatience; {
		s.pace(1)
	}
	for range 3 {
		s.pace(30)
	}
	require.NoError(s.t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil))
	s.awaitShown()
	end()
	s.ledger.feel(faultFDs, s.shortages()-before)
	// Before the next time, those that have waited get on: what they may wait for is limited in all.
	since := time.Now()
	s.await("connections that waited for descriptors", func() bool { return s.ledger.settled(since) })
}

// shortages are how often redial has complained of a want of descriptors.
func (s *trial) shortages() int { return strings.Count(s.redial.log.String(), unix.EMFILE.Error()) }

// restart replaces redial as a rolling update does: the old process serves on until the drain timeout, then the next starts.
func (s *trial) restart() {
	s.t.Helper()
	endOutage := s.ledger.suffer(outage{what: faultRestart, tcp: true, udp: true})
	// A tenth of a second for the signal's way.
	drained := time.Now().Add(faultDrain - 100*time.Millisecond)
	endCut := s.ledger.cutOff(cut{what: "the drain's end", from: drained})
	old := s.redial
	old.signal(unix.SIGTERM)
	require.NoError(s.t, old.wait(), "a process that drained")
	if time.Now().After(drained) {
		s.ledger.served(faultRestart, drained) // without a moment in which nobody was there
	}
	s.redial = old.restart()
	s.awaitShown()
	endOutage()
	endCut()
}

func (s *trial) kill() {
	s.t.Helper()
	endOutage := s.ledger.suffer(outage{what: faultKill, tcp: true, udp: true})
	endCut := s.ledger.cutOff(cut{what: faultKill, from: time.Now()})
	s.redial.kill()
	s.redial = s.redial.restart()
	s.awaitShown()
	endOutage()
	endCut()
}

// healPatience is for a loaded machine: redial looks at the rules less often where a look takes long.
const healPatience = 30 * time.Second

// flush removes rules, in one of several ways, and waits until they are as before.
func (s *trial) flush(way int) {
	s.t.Helper()
	commands := map[int][]string{
		1: {"iptables -t nat -F", "ip6tables -t nat -F"},
		2: {"iptables -t nat -F OUTPUT"},
		3: {"ip6tables -t nat -F PREROUTING"},
		4: {"iptables -F", "ip6tables -F"},
		5: {"iptables -t nat -F REDIAL-SERVICES"},
	}[way]
	before := chains(savedRules(s.t, s.node))
	end := s.ledger.suffer(outage{what: faultFlush, tcp: true, udp: true})
	for _, c := range commands {
		args := strings.Fields(c)
		_, err := s.node.Output(args[0], append([]string{"-w"}, args[1:]...)...)
		require.NoError(s.t, err)
	}
	differ := difference(before, chains(savedRules(s.t, s.node)))
	if differ != "" {
		s.ledger.feel(faultFlush, 1)
	}
	defer func() {
		if differ != "" {
			s.ledger.say("rules are not healed: %s", differ)
		}
	}()
	began := time.Now()
	require.True(s.t, s.within(healPatience, func() bool {
		differ = difference(before, chains(savedRules(s.t, s.node)))
		return differ == ""
	}), "rules not healed after %s", strings.Join(commands, "; "))
	s.ledger.say("healed after %s", time.Since(began).Round(time.Millisecond))
	s.redial.await("healed rules known", func(st *status) bool { return s.mismatch(st) == "" })
	end()
}

// forget empties connection tracking. The kernel then takes what a live connection sends for a new one, in either
// direction, so those may end; new ones must not suffer.
func (s *trial) forget() {
	s.t.Helper()
	endOutage := s.ledger.suffer(outage{what: faultTracking, tcp: true, udp: true})
	endCut := s.ledger.cutOff(cut{what: faultTracking, from: time.Now()})
	flows, err := s.node.Output("conntrack", "-C")
	require.NoError(s.t, err)
	if n, _ := strconv.Atoi(strings.TrimSpace(flows)); n > 0 {
		s.ledger.feel(faultTracking, n)
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		_, err := s.node.Output("conntrack", "-F", "-f", family)
		require.NoError(s.t, err)
	}
	endOutage()
	endCut()
}

// misspell writes a manifest with a mistake, waits until it is told of, and takes it away again.
func (s *trial) misspell(way int) {
	s.t.Helper()
	const garbage = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: default}\nspec: {clusterIPs: 5, typo: x}\n"
	name, content := "broken.yaml", garbage
	if way == 2 {
		// The Service's last good version counts; its endpoints are in documents of their own.
		_, rest, _ := strings.Cut(s.written["web.yaml"], "---\n")
		name, content = "web.yaml", manifests(garbage, rest)
	}
	s.redial.write(name, content)
	s.redial.await("a problem with "+name, func(st *status) bool { return len(st.Problems) > 0 })
	s.pace(20)
	if way == 1 {
		s.redial.remove(name)
	} else {
		s.redial.write(name, s.written[name])
	}
	s.redial.await("no problem any more", func(st *status) bool { return len(st.Problems) == 0 })
	s.awaitShown()
}
