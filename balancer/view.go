package balancer

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// view is what picks read: immutable, but for the atomics inside backends and schedulers and the pin table, which
// consecutive views share.
type view struct {
	backends  []*backend // sorted by address
	left      []*backend // no longer usable but with active connections; sorted by address
	scheduler scheduler
	pins      *pins         // nil: no affinity
	timeout   time.Duration // of pins
	expired   time.Duration // pins last used at or before this had run out when the timeout was last changed
}

// follow returns the view after v with the given backends (sorted, unique) and everything else as in v. An incarnation
// that stays is carried over, and so is the scheduler if all do.
func (v *view) follow(addrs []netip.AddrPort) *view {
	next := *v
	if slices.EqualFunc(v.backends, addrs, func(be *backend, a netip.AddrPort) bool { return be.addr == a }) {
		return &next
	}
	next.backends = make([]*backend, len(addrs))
	for i, addr := range addrs {
		be := find(v.backends, addr)
		if be == nil {
			be = &backend{addr: addr, active: new(atomic.Int64)}
			if before := find(v.left, addr); before != nil {
				be.active = before.active
			}
		}
		next.backends[i] = be
	}
	next.left = nil
	for _, be := range slices.Concat(v.backends, v.left) {
		if find(next.backends, be.addr) == nil && be.active.Load() > 0 {
			next.left = append(next.left, be)
		}
	}
	slices.SortFunc(next.left, func(a, b *backend) int { return a.addr.Compare(b.addr) })
	next.scheduler = v.scheduler.follow(next.backends)
	return &next
}

// account returns the backend that keeps addr's counters, nil if there is none.
func (v *view) account(addr netip.AddrPort) *backend {
	if be := find(v.backends, addr); be != nil {
		return be
	}
	return find(v.left, addr)
}

// holds reports whether this very incarnation is usable.
func (v *view) holds(be *backend) bool { return find(v.backends, be.addr) == be }
