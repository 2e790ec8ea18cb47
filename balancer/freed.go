package balancer

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// waiters are those who wait for a backend below its limit.
type waiters struct {
	waiting atomic.Bool // whether there is a channel; looked at without the lock when a slot frees
	mu      sync.Mutex
	freed   chan struct{}
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (w *waiters) join() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.freed == nil {
		w.freed = make(chan struct{})
		w.waiting.Store(true)
	}
	return w.freed
}

// wake is called after what the waiters wait for is done, join before they look whether it is: so one of the two sees the
// other.
func (w *waiters) wake() {
	if !w.waiting.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.freed != nil {
		close(w.freed)
		w.freed = nil
		w.waiting.Store(false)
	}
}

// Freed tells why a pick with tried found nothing. Nil: there is no backend outside tried, and waiting is no use.
// Otherwise all of them are at MaxPerBackend, and the channel is closed when one of them may have room, which can be at
// once. All who wait are woken and must pick again; some may find that others were quicker.
func (b *Balancer) Freed(tried []netip.AddrPort) <-chan struct{} {
	freed := b.waiters.join()
	v := b.view.Load() // after joining: an Update wakes those who looked at the view before
	untried := false
	for _, be := range v.eligible {
		if slices.Contains(tried, be.addr) {
			continue
		}
		if untried = true; be.load.free(v.limit) {
			return closed
		}
	}
	if !untried {
		return nil
	}
	return freed
}
