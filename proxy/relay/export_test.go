package relay

import (
	"sync/atomic"
	"time"
)

// Timed is a Relay whose clock can be put forward.
type Timed struct {
	*Relay
	ahead atomic.Int64 // by so many nanoseconds
}

// NewTimed returns one whose clock runs as usual otherwise.
func NewTimed(cfg Config) *Timed {
	r := &Timed{Relay: New(cfg)}
	clock := r.clock
	r.clock = func() time.Duration { return clock() + time.Duration(r.ahead.Load()) }
	return r
}

// NewGenerous returns one whose loops give every connection away that they can, at each of its events.
func NewGenerous(cfg Config) *Timed {
	r := NewTimed(cfg)
	r.restless = 0
	return r
}

// NewFrozen returns one whose clock stands still otherwise.
func NewFrozen(cfg Config) *Timed {
	r := &Timed{Relay: New(cfg)}
	r.clock = func() time.Duration { return time.Duration(r.ahead.Load()) }
	return r
}

// Advance puts the clock forward, and returns when the loops have done what was due.
func (r *Timed) Advance(d time.Duration) {
	r.ahead.Add(int64(d))
	r.mu.Lock()
	tcp, udp := r.tcpLoops, r.loops
	r.mu.Unlock()
	for range 2 { // timers come after the requests of a turn
		for _, lp := range tcp {
			lp.ask(func() {})
		}
		for _, lp := range udp {
			answered := make(chan struct{})
			if lp.do(func() { close(answered) }) {
				<-answered
			}
		}
	}
}
