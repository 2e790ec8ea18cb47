package balancer

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Config is everything a Balancer is told. Each Update carries all of it, so the order in which Services and endpoints
// become known cannot lose a setting. Any of it may change at any time: counters, pins and ejections stay.
type Config struct {
	// Backends are the usable backends in any order. Of duplicates the first counts; values without an address or a port
	// are ignored.
	Backends []Backend
	// Scheduler chooses among them. Empty, or not one of ParseScheduler's: rr.
	Scheduler Scheduler
	// Affinity is how long an unused pin keeps a client on its backend. Zero (or less) means no affinity.
	Affinity time.Duration
	// MaxPerBackend is how many connections each backend may have, picks in flight included. Backends that have more,
	// when it is lowered or they had them before, keep them. Zero (or less) means no limit.
	MaxPerBackend int
	// Probe says that to be connected to tells something about a backend, as it does with TCP, but not UDP: so the
	// Prober can find out whether an ejected one is back, and any connection that succeeds brings it back at once.
	// Without it, an ejected backend is back when its time is up.
	Probe bool
}

// Balancer chooses backends for one Service port. Make one with New.
type Balancer struct {
	view      atomic.Pointer[view]
	evictions atomic.Uint64
	born      time.Time // origin of all times here: differences to it use the monotonic clock
	maxPins   int
	chance    func(n int) int // a number in [0,n)
	prober    *Prober         // never nil; one that never runs if there is none
	retries   budget
	asks      atomic.Uint64 // of ejected backends: a count, to tell which was asked before which
	waiters   waiters
	connects  estimate // of all backends
	counts    counts
	watch     func(Ejection) // nil: nobody does

	ejecting sync.Mutex // serialises changes of ejections; held while Prober.mu is taken, never the other way round
	updating sync.Mutex // serialises Update; nothing else takes it
}

// counts are the atomics behind Counters.
type counts struct{ suspicions, ejections, probesAnswered, probesFailed, full, retriesRefused atomic.Uint64 }

// New returns a Balancer without backends. The prober brings ejected backends back. It may be nil: then each comes back
// by a connection that finds it answering once its time is up.
//
// A Balancer with a prober is to be closed, or the probes of what it has ejected go on for ever.
func New(prober *Prober) *Balancer {
	return newBalancer(rand.IntN, maxPins, prober)
}

// newBalancer is New with chance (a number in [0,n)) and the bound on pins injected. Chance decides who has the first
// turn, jitter, and which turns slow start gives up; the schedulers that draw do so by math/rand/v2.
func newBalancer(chance func(n int) int, maxPins int, prober *Prober) *Balancer {
	if prober == nil {
		prober = noProber
	}
	b := &Balancer{born: time.Now(), maxPins: maxPins, chance: chance, prober: prober}
	b.view.Store(&view{name: RoundRobin, scheduler: newRoundRobin(nil, chance)})
	return b
}

// Update replaces all settings.
func (b *Balancer) Update(c Config) {
	b.updating.Lock()
	defer b.updating.Unlock()
	if c.Scheduler == "" {
		c.Scheduler = RoundRobin
	}
	next := b.view.Load().follow(usable(c.Backends), c.Scheduler, b.chance)
	next.setAffinity(c.Affinity, b)
	next.limit = max(c.MaxPerBackend, 0)
	next.connects = c.Probe
	next.probe = c.Probe && b.prober != noProber
	b.view.Store(next)
	b.waiters.wake()
}

// Close ends the probes, until the next Update. Everything else goes on as without a prober, so that connections which
// are being dialled still find a backend.
func (b *Balancer) Close() {
	b.updating.Lock()
	defer b.updating.Unlock()
	next := *b.view.Load()
	next.probe = false
	b.view.Store(&next)
}

// Pick is PickFor without a destination.
func (b *Balancer) Pick(client netip.Addr, tried []netip.AddrPort) (netip.AddrPort, bool) {
	return b.PickFor(client, netip.Addr{}, tried)
}

// PickFor returns the backend that a connection of client to destination should go to, and false if there is none outside
// tried or all of them are at their limit, which Freed tells apart. An invalid client has no affinity. The destination,
// an address of the Service, matters to dh only and may be invalid. PickFor does not keep tried.
//
// Every pick must be followed by a Report.
func (b *Balancer) PickFor(client, destination netip.Addr, tried []netip.AddrPort) (netip.AddrPort, bool) {
	v := b.view.Load()
	r := request{client: client, destination: destination, tried: tried, view: v, balancer: b}
	var chosen *backend
	if v.pins != nil && client.IsValid() {
		chosen = v.pins.pick(&r, b.now())
	} else {
		chosen = r.choose()
	}
	if chosen == nil {
		b.countFull(&r)
		return netip.AddrPort{}, false
	}
	chosen.picked.Add(1)
	return chosen.addr, true
}

// choose claims a backend: one that the scheduler takes, or else one of the suspects, or else, of those ejected, the least
// bad.
func (r *request) choose() *backend {
	be := r.view.scheduler.next(*r)
	if be == nil && r.trust() {
		be = r.view.scheduler.next(*r)
	}
	if be != nil {
		return be
	}
	be = r.leastBad()
	if be != nil && len(r.tried) == 0 {
		r.balancer.retries.earn()
	}
	return be
}

// Scheduler returns the one in force.
func (b *Balancer) Scheduler() Scheduler { return b.view.Load().name }

// WantsDestination reports whether it makes a difference to name the destination: whether finding out is worth a system
// call.
func (b *Balancer) WantsDestination() bool { return b.view.Load().name == DestinationHash }

// Report tells the outcome of a dial to a picked backend, and how long it took; zero is unknown. A nil err means
// connected: the client's pin is refreshed and the connection counts as active until Release. Otherwise the dial
// failed, and the client's pin to that backend is dropped. context.Canceled means that the dial was given up for
// reasons that say nothing about the backend, such as a client that left or another backend that was quicker: nothing
// changes, except that the backend is known to take longer than that.
//
// A backend that has left in the meantime is accounted for if it is still charged with anything and ignored otherwise.
func (b *Balancer) Report(client netip.Addr, backend netip.AddrPort, took time.Duration, err error) {
	v := b.view.Load()
	be := v.account(backend)
	if err == nil {
		b.connected(v, client, backend, be, took)
		return
	}
	canceled := errors.Is(err, context.Canceled)
	if be != nil {
		if canceled {
			be.connects.atLeast(took)
		}
		if e := be.ejection.Load(); canceled && e.out() {
			e.testing.Store(0)
		}
		be.load.abandon()
		b.waiters.wake()
		if !canceled {
			b.blame(be, &be.strikes, err)
		}
	}
	if !canceled {
		v.unpin(client, backend)
	}
}

// Fail tells that a connection that was reported as connected, and is not released yet, turned out to lead nowhere: a
// UDP backend refused a datagram, or a TCP backend closed before it moved a byte. It counts as a failed dial. At most
// once for a connection; the Release follows as ever.
func (b *Balancer) Fail(client netip.Addr, backend netip.AddrPort, err error) {
	v := b.view.Load()
	if be := v.account(backend); be != nil {
		be.load.spoilt.Add(1)
		b.blame(be, &be.load.lapses, err)
	}
	v.unpin(client, backend)
}

func (b *Balancer) connected(v *view, client netip.Addr, backend netip.AddrPort, be *backend, took time.Duration) {
	if be != nil {
		be.connected.Add(1)
		be.connects.add(took)
		b.connects.add(took)
		be.load.connect()
		b.answered(be, v.connects)
	}
	if v.pins == nil || !client.IsValid() {
		return
	}
	if be := find(v.backends, backend); be != nil {
		v.pins.refresh(v, pinKey(client), be, b.now())
	}
}

// blame counts a failure in one of be's rows.
func (b *Balancer) blame(be *backend, row *atomic.Int32, err error) {
	be.failed.Add(1)
	be.last.Store(&failure{err: err, at: time.Now()})
	b.strike(be, row, err)
}

// unpin ends the client's pin if it is to backend.
func (v *view) unpin(client netip.Addr, backend netip.AddrPort) {
	if v.pins != nil && client.IsValid() {
		v.pins.drop(pinKey(client), backend)
	}
}

// Release ends a connection that was reported with a nil error.
func (b *Balancer) Release(backend netip.AddrPort) {
	if be := b.view.Load().account(backend); be != nil {
		be.load.release()
		b.waiters.wake()
	}
}

// HedgeDelay returns how long a dial to backend may be without an answer before a second backend is worth being dialled
// beside it: longer than nearly all of its dials have taken, from 10 ms to 250 ms. Of a backend that has hardly been
// connected to yet it is what would do for the others; if that is not known either, 250 ms.
func (b *Balancer) HedgeDelay(backend netip.AddrPort) time.Duration {
	if be := b.view.Load().account(backend); be != nil {
		return b.hedge(be)
	}
	return maxHedge
}

func (b *Balancer) hedge(be *backend) time.Duration {
	if be.connects.known() {
		return be.connects.hedge()
	}
	return min(be.connects.hedge(), b.connects.hedge())
}

// now is the time on the scale of the pins and ejections.
func (b *Balancer) now() time.Duration { return time.Since(b.born) }
