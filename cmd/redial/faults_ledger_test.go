package main

import (
	"errors"
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
	noted      map[string]bool // what has been excused since the last line that is no excuse
	violated   chan struct{}   // closed by the first violation
}

// outage is a time in which new connections, or UDP requests, may fail.
type outage struct {
	what        string
	from, until time.Time // zero: not over yet
	// udp and tcp say whose; silentFirst restricts it to connections in which the client did not wait for the greeting.
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
	return &ledger{began: time.Now(), opening: map[uint64]time.Time{}, counts: map[string]int{}, noted: map[string]bool{}, violated: make(chan struct{})}
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
	// A reset has to stay one: the client must not take it for the end. A killed process leaves its sockets to the kernel.
	reason := l.excuse(x, errors.Is(err, errCutShort))
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

// excuse is the first thing that allows an exchange to fail; with killed, only the death of redial counts.
func (l *ledger) excuse(x *exchange, killed bool) string {
	if x.phase == phaseOpening || x.udp {
		for _, o := range l.outages {
			if killed && o.what != faultKill || x.udp && !o.udp || !x.udp && !o.tcp || o.spokenOnly && x.waits {
				continue
			}
			if o.until.IsZero() || x.began.Before(o.until) {
				return o.what
			}
		}
	}
	now := time.Now()
	for _, c := range l.cuts {
		if killed && c.what != faultKill {
			continue
		}
		mine := c.backend == "" || c.backend == x.backend || x.backend == ""
		if mine && !x.udp && now.After(c.from) && (c.before.IsZero() || x.began.Before(c.before)) {
			return c.what
		}
	}
	return ""
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
	return strings.TrimSuffix(b.String(), ",")
}
