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
// become known cannot lose a setting.
type Config struct {
	// Backends are the usable backends in any order. Duplicates, and values without an address or a port, are ignored.
	Backends []netip.AddrPort
	// Affinity is how long an unused pin keeps a client on its backend. Zero (or less) means no affinity.
	Affinity time.Duration
}

// Balancer chooses backends for one Service port. Make one with New.
type Balancer struct {
	view      atomic.Pointer[view]
	evictions atomic.Uint64
	born      time.Time // origin of the pins' times: differences to it use the monotonic clock
	maxPins   int

	updating sync.Mutex // serialises Update; nothing else takes it
}

// New returns a Balancer without backends.
func New() *Balancer {
	return newBalancer(rand.IntN, maxPins)
}

// newBalancer is New with the choice of the first turn (a number in [0,n)) and the bound on pins injected.
func newBalancer(first func(n int) int, maxPins int) *Balancer {
	b := &Balancer{born: time.Now(), maxPins: maxPins}
	b.view.Store(&view{scheduler: newRoundRobin(nil, first)})
	return b
}

// Update replaces the backends and the affinity setting.
func (b *Balancer) Update(c Config) {
	b.updating.Lock()
	defer b.updating.Unlock()
	next := b.view.Load().follow(usable(c.Backends))
	next.setAffinity(c.Affinity, b)
	b.view.Store(next)
}

// Pick returns the backend that a connection of client should go to, and false if there is none outside tried. An
// invalid client has no affinity. Pick does not keep tried.
func (b *Balancer) Pick(client netip.Addr, tried []netip.AddrPort) (netip.AddrPort, bool) {
	v := b.view.Load()
	var chosen *backend
	if v.pins != nil && client.IsValid() {
		chosen = v.pins.pick(v, pinKey(client), tried, b.now())
	} else {
		chosen = v.scheduler.next(tried)
	}
	if chosen == nil {
		return netip.AddrPort{}, false
	}
	chosen.picked.Add(1)
	return chosen.addr, true
}

// Report tells the outcome of a dial to a picked backend. A nil err means connected: the client's pin is refreshed and
// the connection counts as active until Release. Otherwise the dial failed, and the client's pin to that backend
// is dropped. context.Canceled means that the dial was given up for reasons that say nothing about the backend, such as
// a client that left: nothing changes.
//
// A backend that has left in the meantime is accounted for if it still has active connections and ignored otherwise.
func (b *Balancer) Report(client netip.Addr, backend netip.AddrPort, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	v := b.view.Load()
	if be := v.account(backend); be != nil {
		if err == nil {
			be.connected.Add(1)
			be.active.Add(1)
		} else {
			be.failed.Add(1)
			be.last.Store(&failure{err: err, at: time.Now()})
		}
	}
	if v.pins == nil || !client.IsValid() {
		return
	}
	if err != nil {
		v.pins.drop(pinKey(client), backend)
	} else if be := find(v.backends, backend); be != nil {
		v.pins.refresh(v, pinKey(client), be, b.now())
	}
}

// Release ends a connection that was reported with a nil error.
func (b *Balancer) Release(backend netip.AddrPort) {
	if be := b.view.Load().account(backend); be != nil {
		be.release()
	}
}

// now is the time on the scale of the pins.
func (b *Balancer) now() time.Duration { return time.Since(b.born) }
