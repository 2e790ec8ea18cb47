package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// The kinds of faults. Those of a backend last for some events, so that they overlap; backlogs and the others are over with
// their event.
const (
	faultRefuse   = "refuse"   // the port is closed: connections that are live go on
	faultFlap     = "flap"     // ... and opened, several times
	faultCrash    = "crash"    // ... and live connections are reset
	faultSilent   = "silent"   // what comes in is dropped; live connections only stall
	faultVanish   = "vanish"   // connections end and nobody hears of it
	faultReset    = "reset"    // connections are accepted and reset at once
	faultHangUp   = "hangup"   // ... and closed at once
	faultBacklog  = "backlog"  // nothing is accepted and the queue is short
	faultSlow     = "slow"     // the backend reads slowly: it works
	faultFDs      = "fds"      // redial is out of file descriptors
	faultRestart  = "restart"  // SIGTERM, and the next process when the old one has ended
	faultKill     = "kill"     // SIGKILL
	faultFlush    = "flush"    // somebody else removes rules
	faultTracking = "tracking" // connection tracking is emptied
	faultListing  = "listing"  // an endpoint comes, goes, or changes its conditions
	faultScale    = "scale"    // another Service loses all endpoints, or gets them back
	faultServices = "services" // other Services come and go
	faultRename   = "rename"   // the Service's port gets another name, and with it another frontend
	faultPolicy   = "policy"   // traffic policies and session affinity
	faultBroken   = "broken"   // a manifest that cannot be read
)

var backendFaults = []string{faultRefuse, faultFlap, faultCrash, faultSilent, faultVanish, faultReset, faultHangUp, faultBacklog, faultSlow}

var faultKinds = append(slices.Clone(backendFaults), faultFDs, faultRestart, faultKill, faultFlush, faultTracking,
	faultListing, faultScale, faultServices, faultRename, faultPolicy, faultBroken)

// What a pod can be in the EndpointSlices.
const (
	listedReady       = "ready"
	listedUnready     = "unready"
	listedTerminating = "terminating"
	listedNot         = "absent"
)

var listings = []string{listedReady, listedUnready, listedTerminating, listedNot}

// The pods behind the Service. The last one is said to be on another node.
const (
	faultPods  = 4
	localPods  = 3
	extras     = 4 // other Services
	flushWays  = 5
	brokenWays = 2
	// backlogWays are to let the queue fill by itself, and to have it full at once.
	backlogWays = 2
)

// event is one step of a plan. Its fields beyond kind are of those kinds that need them.
type event struct {
	n    int
	kind string
	pod  int  // of backend faults and listings
	ends bool // of a backend fault: it is over
	// families are those a silence is in.
	families []string
	listed   string
	which    int // of several ways, or the extra Service
	pace     int // connections to wait for before the next event
}

func (e event) String() string {
	s := fmt.Sprintf("#%d %s", e.n, e.kind)
	switch {
	case slices.Contains(backendFaults, e.kind):
		verb := "begins"
		if e.ends {
			verb = "ends"
		}
		s += fmt.Sprintf(" %s at %s %s", verb, podName(e.pod), strings.Join(e.families, "+"))
		if e.which > 0 {
			s += fmt.Sprint(e.which)
		}
	case e.kind == faultListing:
		s += fmt.Sprintf(" %s is %s", podName(e.pod), e.listed)
	case e.which > 0:
		s += fmt.Sprintf(" %d", e.which)
	}
	return fmt.Sprintf("%s (then %d connections)", s, e.pace)
}

func podName(i int) string { return fmt.Sprintf("p%d", i+1) }

// podState is what a plan knows of one pod.
type podState struct {
	listed string
	fault  string // "": none
	left   int    // events until the fault ends
	during event  // its beginning
}

// good means that a dial to it succeeds and that it is among those to be dialled.
func (p *podState) good() bool {
	return p.listed == listedReady && (p.fault == "" || p.fault == faultSlow)
}

// settings are what the manifests say beside the endpoints.
type settings struct {
	portName                   int
	affinity, internal, abroad bool // ClientIP; traffic policies Local, internal and external
	scaledDown                 bool
	extra                      [extras]bool
}

// plan makes up a sequence of faults. It is a function of its seed and kinds alone: what really happens, and when, does
// not touch it. At every moment at least one pod of this node is ready and works.
type plan struct {
	rng   *rand.Rand
	kinds []string
	pods  [faultPods]podState
	settings
	made int
}

func newPlan(seed uint64, kinds []string) *plan {
	p := &plan{rng: rand.New(rand.NewPCG(seed, 0xfa017)), kinds: kinds}
	for i := range p.pods {
		p.pods[i].listed = listedReady
	}
	return p
}

// anchored reports that somebody is left to serve, whatever becomes of a pod. -1 is no pod.
func (p *plan) anchored(without int) bool { return len(p.anchors(without)) > 0 }

func (p *plan) anchors(without int) (pods []int) {
	for i := range localPods {
		if i != without && p.pods[i].good() {
			pods = append(pods, i)
		}
	}
	return pods
}

// next returns the next event and counts on its being carried out.
func (p *plan) next() event {
	p.made++
	e := p.ending()
	for e.kind == "" {
		if e = p.beginning(p.kinds[p.rng.IntN(len(p.kinds))]); e.kind == "" {
			e = p.ending() // or nothing may be possible for good
		}
	}
	e.n, e.pace = p.made, 1+p.rng.IntN(40)
	return e
}

// ending is the end of a fault that has lasted long enough; a zero event if there is none.
func (p *plan) ending() event {
	for i := range p.pods {
		pod := &p.pods[i]
		if pod.fault == "" {
			continue
		}
		if pod.left--; pod.left <= 0 {
			return p.end(i)
		}
	}
	return event{}
}

func (p *plan) end(i int) event {
	e := p.pods[i].during
	e.ends = true
	p.pods[i].fault = ""
	return e
}

// rest returns the events after which all is as it was at first.
func (p *plan) rest() (events []event) {
	add := func(e event) {
		p.made++
		e.n = p.made
		events = append(events, e)
	}
	for i := range p.pods {
		if p.pods[i].fault != "" {
			add(p.end(i))
		}
	}
	for i := range p.pods {
		if p.pods[i].listed != listedReady {
			p.pods[i].listed = listedReady
			add(event{kind: faultListing, pod: i, listed: listedReady})
		}
	}
	p.settings = settings{}
	add(event{kind: faultServices})
	return events
}

// beginning is an event of the kind; a zero one if there can be none now.
func (p *plan) beginning(kind string) event {
	e := event{kind: kind}
	switch kind {
	case faultFDs, faultRestart, faultKill, faultTracking:
	case faultFlush:
		e.which = 1 + p.rng.IntN(flushWays)
	case faultBroken:
		e.which = 1 + p.rng.IntN(brokenWays)
	case faultListing:
		return p.listing()
	case faultScale:
		p.scaledDown = !p.scaledDown
	case faultServices:
		i := p.rng.IntN(extras)
		p.extra[i] = !p.extra[i]
		e.which = 1 + i
	case faultRename:
		p.portName++
		e.which = p.portName
	case faultPolicy:
		e.which = 1 + p.rng.IntN(3)
		p.toggle(e.which)
	default:
		return p.breakPod(kind)
	}
	return e
}

func (p *plan) toggle(policy int) {
	switch policy {
	case 1:
		p.affinity = !p.affinity
	case 2:
		p.internal = !p.internal
	case 3:
		p.abroad = !p.abroad
	}
}

func (p *plan) listing() event {
	i := p.rng.IntN(faultPods)
	listed := listings[p.rng.IntN(len(listings))]
	if listed == p.pods[i].listed || listed != listedReady && !p.anchored(i) {
		return event{}
	}
	p.pods[i].listed = listed
	return event{kind: faultListing, pod: i, listed: listed}
}

func (p *plan) breakPod(kind string) event {
	i := p.rng.IntN(faultPods)
	span, families := 1+p.rng.IntN(5), p.rng.IntN(3)
	if p.pods[i].fault != "" || kind != faultSlow && !p.anchored(i) {
		return event{}
	}
	e := event{kind: kind, pod: i}
	if kind == faultSilent {
		e.families = [][]string{{"4"}, {"6"}, {"4", "6"}}[families]
	}
	if kind == faultBacklog {
		e.which = 1 + p.rng.IntN(backlogWays)
		return e
	}
	p.pods[i].fault, p.pods[i].left, p.pods[i].during = kind, span, e
	return e
}
