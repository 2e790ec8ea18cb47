package main

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// footprint is what a process holds on to.
type footprint struct {
	fds, goroutines, heapMiB int
	open                     []string
}

// get asks redial's HTTP server.
func (s *trial) get(path string) string {
	s.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var resp *http.Response
	s.await("metrics served", func() bool { // not at once where the port was another process's
		var err error
		resp, err = client.Get("http://127.0.0.1:10249" + path)
		return err == nil
	})
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	return string(body)
}

// metric finds one without labels.
func (s *trial) metric(name, text string) int {
	s.t.Helper()
	found := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(text)
	require.NotNil(s.t, found, "%v", name)
	f, err := strconv.ParseFloat(found[1], 64)
	require.NoError(s.t, err)
	return int(f)
}

// footprint collects garbage first; twice, since pools outlive the first time.
func (s *trial) footprint() footprint {
	s.t.Helper()
	s.get("/debug/pprof/heap?gc=1")
	s.get("/debug/pprof/heap?gc=1")
	text, open := s.get("/metrics"), s.descriptors()
	return footprint{len(open), s.metric("go_goroutines", text), s.metric("go_memstats_heap_inuse_bytes", text) >> 20, open}
}

// descriptors lists what redial has open, sockets with their addresses and states.
func (s *trial) descriptors() (open []string) {
	pid := s.redial.cmd.Process.Pid
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	entries, _ := os.ReadDir(dir)
	sockets, _ := s.node.Output("ss", "-HOanp")
	for _, e := range entries {
		to, _ := os.Readlink(dir + e.Name())
		for line := range strings.Lines(sockets) {
			if strings.Contains(line, fmt.Sprintf("pid=%d,fd=%s)", pid, e.Name())) {
				to = strings.Join(strings.Fields(line)[:6], " ")
			}
		}
		open = append(open, to)
	}
	slices.Sort(open)
	return open
}

// What a quiet process may hold beyond what it held before: the two that answer the scrape, or are about to end, and
// memory that fragments keep.
const (
	spareGoroutines = 3
	spareFDs        = 2
	spareMiB        = 16
)

// settle has the clients end and expects everything to be as if nothing had happened.
func (s *trial) settle(before footprint) {
	s.t.Helper()
	s.ledger.say("clients are to end")
	close(s.end)
	s.clients.Wait()
	s.ledger.say("clients have ended")
	s.awaitShown()
	// Clients of this node over IPv6 may have been left without a reset when connection tracking was emptied: the kernel
	// sends that of an address of another interface to ::1 out of that interface (tcp_v6_send_response). redial gives them
	// up when they have not answered for long enough. Those of closed frontends are in no status.
	s.await("every connection and session over", func() bool {
		text := s.get("/metrics")
		return s.metric("redial_connections_active", text)+s.metric("redial_udp_sessions_active", text)+heldBy(s.redial.status()) == 0
	})
	s.checkCounters(s.redial.status())
	for _, kind := range s.ledger.unfelt() {
		s.ledger.violate("a fault that nothing has felt: %s", kind)
	}
	after := footprint{}
	if !eventually(func() bool {
		after = s.footprint()
		return after.fds <= before.fds+spareFDs && after.goroutines <= before.goroutines+spareGoroutines && after.heapMiB <= before.heapMiB+spareMiB
	}) {
		s.ledger.violate("held when quiet: %+v,\nand before anything happened: %+v", after, before)
	}
	s.checkRules()
}

// heldBy is what backends are charged with.
func heldBy(st *status) (active int) {
	for _, svc := range st.Services {
		for _, p := range svc.Ports {
			for _, f := range p.Fronts {
				for _, b := range f.Backends {
					active += int(b.Active)
				}
			}
		}
	}
	return active
}

func (s *trial) checkCounters(st *status) {
	if len(st.Problems) > 0 {
		s.ledger.violate("stale problems of manifests: %v", st.Problems)
	}
	if f := st.IPTables; f.IPv4.Error+f.IPv6.Error+f.IPv4.GuardError+f.IPv6.GuardError+f.IPv4.FlowsError+f.IPv6.FlowsError != "" {
		s.ledger.violate("stale problems of rules: %+v", f)
	}
	for _, svc := range st.Services {
		if len(svc.Problems) > 0 {
			s.ledger.violate("stale problems of %s: %v", svc.Name, svc.Problems)
		}
		for _, p := range svc.Ports {
			for _, f := range p.Fronts {
				c := f.Stats
				if p.Protocol == "TCP" && c.Accepted != c.Connected+c.Failed+c.NoBackend+c.Abandoned+c.Limited {
					s.ledger.violate("%s %s %s: connections are not accounted for: %+v", svc.Name, p.Name, f.Family, c)
				}
				if svc.Name == "web" && c.Failed > 0 {
					s.ledger.violate("%s %s: %d connections failed while a backend worked", p.Name, f.Family, c.Failed)
				}
				s.ledger.count("retried", int(c.Retried))
			}
		}
	}
}

// checkRules compares the rules with those of a process that knows of no past.
func (s *trial) checkRules() {
	s.t.Helper()
	grown := chains(s.namedRules())
	s.redial.signal(unix.SIGTERM)
	require.NoError(s.t, s.redial.wait())
	out, err := runRedial("cleanup")
	require.NoError(s.t, err, out)
	if left := savedRules(s.t, s.node); strings.Contains(left, "REDIAL") {
		s.ledger.violate("left by cleanup:\n%s", left)
	}
	s.redial = s.redial.restart()
	s.awaitShown()
	if d := difference(chains(s.namedRules()), grown); d != "" {
		s.ledger.violate("the rules differ from those made afresh: %s", d)
	}
}

// namedRules are all rules, in which the ports that redial says to be of a Service port are called by its name: a process
// that starts while another one drains has to take other ports for UDP.
func (s *trial) namedRules() string {
	s.t.Helper()
	rules := strings.Split(savedRules(s.t, s.node), "== ")
	for i, part := range rules {
		for _, svc := range s.redial.status().Services {
			for _, p := range svc.Ports {
				for _, f := range p.Fronts {
					if strings.HasPrefix(part, "ip6") == (f.Family == "IPv6") {
						port, name := fmt.Sprintf("--to-ports %d", f.ProxyPort), fmt.Sprintf("--to-ports of %s:%s/%s/%s", svc.Name, p.Name, p.Protocol, f.Pool)
						part = regexp.MustCompile(fmt.Sprintf(`(?m)(-p %s .*)%s$`, strings.ToLower(string(p.Protocol)), port)).ReplaceAllString(part, "${1}"+name)
					}
				}
			}
		}
		rules[i] = part
	}
	return strings.Join(rules, "== ")
}

// chains splits what [savedRules] returns into the rules of each chain, whose order matters; that of chains does not.
func chains(saved string) map[string][]string {
	all := map[string][]string{}
	program, table := "", ""
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "== "):
			program = line
		case strings.HasPrefix(line, "*"):
			table = line
		case strings.HasPrefix(line, ":"):
			name, _, _ := strings.Cut(line[1:], " ")
			key := program + " " + table + " " + name
			all[key] = append(all[key], line)
		case strings.HasPrefix(line, "-A "):
			name, _, _ := strings.Cut(line[3:], " ")
			key := program + " " + table + " " + name
			all[key] = append(all[key], line)
		}
	}
	return all
}

func difference(want, have map[string][]string) string {
	var b strings.Builder
	keys := maps.Clone(want)
	maps.Copy(keys, have)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !slices.Equal(want[key], have[key]) {
			fmt.Fprintf(&b, "\n%s:\n  want %q\n  have %q", key, want[key], have[key])
		}
	}
	return b.String()
}
