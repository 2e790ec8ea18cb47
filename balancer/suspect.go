package balancer

import (
	"net/netip"
	"time"
)

// Overdue tells that a dial to backend has been without an answer for HedgeDelay or longer, and that what becomes of it
// will be known after another wait. Until then, or until a dial is reported to have succeeded, backend is chosen only
// where there is no other. A wait of zero (or less) changes nothing. Overdue reports whether there is another outside
// tried.
func (b *Balancer) Overdue(backend netip.AddrPort, wait time.Duration, tried []netip.AddrPort) bool {
	v := b.view.Load()
	if be := find(v.backends, backend); be != nil && wait > 0 {
		b.suspect(be, wait)
	}
	r := request{tried: tried, view: v, balancer: b}
	return r.any(v.eligible)
}

func (b *Balancer) suspect(be *backend, wait time.Duration) {
	now := b.now()
	before, until := be.suspectUntil.Load(), int64(now+wait)
	if until > before && be.suspectUntil.CompareAndSwap(before, until) && before <= int64(now) {
		b.counts.suspicions.Add(1)
	}
}

// suspects reports whether be is to be avoided, if this pick avoids suspects.
func (r *request) suspects(be *backend) bool {
	until := be.suspectUntil.Load()
	return until != 0 && !r.trusting && int64(r.balancer.now()) < until
}

// trust has the pick take suspects as well, and reports that there are any to take.
func (r *request) trust() bool {
	for _, be := range r.view.eligible {
		if r.wants(be) && !r.out(be) && r.suspects(be) {
			r.trusting = true
			return true
		}
	}
	return false
}
