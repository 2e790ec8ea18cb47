package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// ledger is what a run of faults has seen: events, what clients may suffer from them, and what they did suffer.
type ledger struct {
	mu         sync.Mutex // guards what follows
	began      time.Time
	lines      []string
	opening    map[uint64]time.Time // connections that no backend has greeted yet
	outages    []*outage
	cuts       []cut
	violations []string
	counts     map[string]int
	faults     map[string]toll // by kind
	noted      map[string]bool // what has been excused since the last line that is no excuse
	violated   chan struct{}   // closed by the first violation
}

// toll is how often a fault was there, and how often that was felt: by a packet, a connection, or redial itself.
type toll struct{ begun, felt int }

// outage is a time in which new connections, or UDP requests, may fail.
type outage struct {
	what        string
	from, until time.Time // zero: not over yet
	felt        time.Time // when it was first needed as an excuse; zero: not yet
	// udp and tcp say whose; spokenOnly restricts it to connections in which the client did not wait for the greeting.
	udp, tcp, spokenOnly bool
}

// cut is something that ends live connections: those of one backend, or of all if that is empty. They have begun before
// the time, and fail no earlier than from.
type cut struct {
	what    string
	from    time.Time
	before  time.Time // zero: not known yet
	backend string
}

func newLedger() *ledger {
	return &ledger{began: time.Now(), opening: map[uint64]time.Time{}, counts: map[string]int{}, faults: map[string]toll{}, noted: map[string]bool{}, violated: make(chan struct{})}
}

// say notes something for the report of a failure.
func (l *ledger) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sayLocked(format, args...)
}

func (l *ledger) sayLocked(format string, args ...any) {
	clear(l.noted)
	l.lines = append(l.lines, fmt.Sprintf("%8.3f  %s", time.Since(l.began).Seconds(), fmt.Sprintf(format, args...)))
}

// violate notes that an invariant does not hold.
func (l *ledger) violate(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	l.sayLocked("VIOLATION %s", text)
	if l.violations = append(l.violations, text); len(l.violations) == 1 {
		close(l.violated)
	}
}

func (l *ledger) count(what string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[what] += n
}

func (l *ledger) counted(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[what]
}

func (l *ledger) begin(fault string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.faults[fault]
	t.begun++
	l.faults[fault] = t
}

func (l *ledger) feel(fault string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.faults[fault]
	t.felt += n
	l.faults[fault] = t
}

// unfelt are the kinds of faults that were there often and made no difference to anybody.
func (l *ledger) unfelt() (kinds []string) {
	const often = 5
	l.mu.Lock()
	defer l.mu.Unlock()
	for kind, t := range l.faults {
		if t.begun >= often && t.felt == 0 {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// suffer begins an outage. end ends it.
func (l *ledger) suffer(o outage) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o.from = time.Now()
	l.outages = append(l.outages, &o)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		o.until = time.Now()
	}
}

// served notes that nobody had a reason to fail by the present outage before a moment.
func (l *ledger) served(what string, until time.Time) {
	l.mu.Lock()
	o := l.outages[len(l.outages)-1]
	early := o.what == what && !o.felt.IsZero() && o.felt.Before(until)
	l.mu.Unlock()
	if early {
		l.violate("%s: somebody failed %s after it began, and should not have before %s", what, o.felt.Sub(o.from), until.Sub(o.from))
	}
}

// cutOff begins a cut. end tells that connections from now on are none of it.
func (l *ledger) cutOff(c cut) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cuts = append(l.cuts, c)
	i := len(l.cuts) - 1
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.cuts[i].before = time.Now()
	}
}

// open notes that a connection begins; opened that a backend has greeted it, or that it has failed.
func (l *ledger) open(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opening[id] = time.Now()
}

func (l *ledger) opened(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.opening, id)
	l.counts["connections"]++
}

// settled reports that no connection is being opened that has begun before a moment. Those that may fail do not count: a
// SYN that was sent while there were no rules goes astray with all that follow it.
func (l *ledger) settled(at time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, began := range l.opening {
		if began.Before(at) && !l.suffered(began) {
			return false
		}
	}
	return true
}

func (l *ledger) suffered(began time.Time) bool {
	return slices.ContainsFunc(l.outages, func(o *outage) bool {
		return o.tcp && (o.until.IsZero() || began.Before(o.until))
	})
}

// judge decides whether a failed exchange may have failed.
func (l *ledger) judge(x *exchange, err error) {
	l.mu.Lock()
	reason := l.excuse(x, cutShort(err))
	if reason != "" {
		l.counts["excused: "+reason]++
		if !l.noted[reason] {
			noted := l.noted
			l.noted = nil
			l.sayLocked("excused by %s, the first one: %v: %v", reason, x, err)
			l.noted = noted
			l.noted[reason] = true
		}
	}
	l.mu.Unlock()
	if reason == "" {
		l.violate("%v: %v", x, err)
	}
}

// excuse is the first thing that allows an exchange to fail. A reset has to stay one: the client must not take it for the
// end. So a FIN is excused only if a backend has sent it, or the kernel, to which a killed process leaves its sockets.
func (l *ledger) excuse(x *exchange, fin bool) string {
	if x.phase == phaseOpening || x.udp {
		for _, o := range l.outages {
			if fin && o.what != faultKill && o.what != faultHangUp || x.udp && !o.udp || !x.udp && !o.tcp {
				continue
			}
			if o.spokenOnly && (x.waits || x.progress.Load() == 0 || l.spentLocked(o.what)) {
				continue
			}
			if o.until.IsZero() || x.began.Before(o.until) {
				if o.felt.IsZero() {
					o.felt = time.Now()
				}
				return o.what
			}
		}
	}
	now := time.Now()
	for _, c := range l.cuts {
		if fin && c.what != faultKill {
			continue
		}
		// Who waits for the greeting of a backend that crashes is to get another one's.
		mine := c.backend == "" || c.backend == x.backend || x.backend == "" && !(c.what == faultCrash && x.waits)
		if mine && !x.udp && now.After(c.from) && (c.before.IsZero() || x.began.Before(c.before)) {
			return c.what
		}
	}
	return ""
}

// spentLocked reports whether a fault has been an excuse for as many as felt it: of what a backend accepts and ends at once,
// each ends no more than one.
func (l *ledger) spentLocked(fault string) bool {
	t, counted := l.faults[fault]
	return counted && l.counts["excused: "+fault] >= t.felt
}

// report is the end of the story.
func (l *ledger) report(lines int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, line := range l.lines[max(0, len(l.lines)-lines):] {
		fmt.Fprintln(&b, line)
	}
	return b.String()
}

func (l *ledger) summary() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%.1f s:", time.Since(l.began).Seconds())
	for _, what := range slices.Sorted(maps.Keys(l.counts)) {
		fmt.Fprintf(&b, " %s %d,", what, l.counts[what])
	}
	fmt.Fprint(&b, " faults (and how often they were felt):")
	for _, kind := range slices.Sorted(maps.Keys(l.faults)) {
		fmt.Fprintf(&b, " %s %d (%d),", kind, l.faults[kind].begun, l.faults[kind].felt)
	}
	return strings.TrimSuffix(b.String(), ",")
}
