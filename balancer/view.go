package balancer

import (
	"net/netip"
	"slices"
	"time"
)

// view is what picks read: immutable, but for the atomics inside backends and schedulers and the pin table, which
// consecutive views share.
type view struct {
	backends  []*backend // sorted by address
	eligible  []*backend // those with weight, or all if none has; sorted by address
	left      []*backend // no longer usable but charged with connections or picks in flight; sorted by address
	name      Scheduler
	scheduler scheduler     // over eligible
	limit     int           // of each backend's load; 0: none
	connects  bool          // to be connected to says something about a backend
	probe     bool          // ejected backends are the prober's to test
	pins      *pins         // nil: no affinity
	timeout   time.Duration // of pins
	expired   time.Duration // pins last used at or before this had run out when the timeout was last changed
}

// follow returns the view after v with the given backends (sorted, unique, weights in range) and scheduler, and
// everything else as in v. An incarnation that stays is carried over, and so is the scheduler if nothing changes.
func (v *view) follow(list []Backend, name Scheduler, first func(int) int) *view {
	next := *v
	moved := !slices.EqualFunc(v.backends, list, func(be *backend, b Backend) bool { return be.addr == b.Addr })
	if moved {
		next.backends = make([]*backend, len(list))
		for i, b := range list {
			next.backends[i] = v.enter(b.Addr)
		}
		next.left = v.leaving(next.backends)
	}
	for i, b := range list {
		if be := next.backends[i]; int(be.weight.Load()) != b.Weight {
			be.weight.Store(int32(b.Weight))
			moved = true
		}
	}
	if !moved && name == v.name {
		return &next
	}
	next.name, next.eligible = name, eligible(next.backends)
	if name == v.name {
		next.scheduler = v.scheduler.follow(next.eligible)
	} else {
		next.scheduler = newScheduler(name, next.eligible, first)
	}
	return &next
}

// enter returns the backend at addr for the next view: the same if it stays, or else a new incarnation.
func (v *view) enter(addr netip.AddrPort) *backend {
	if be := find(v.backends, addr); be != nil {
		return be
	}
	be := &backend{addr: addr}
	if before := find(v.left, addr); before != nil {
		be.load = before.load
		be.load.lapses.Store(0) // another pod's
	} else {
		be.load = new(load)
	}
	return be
}

// leaving returns the backends that are not in next but still charged with something.
func (v *view) leaving(next []*backend) (left []*backend) {
	for _, be := range slices.Concat(v.backends, v.left) {
		if find(next, be.addr) == nil && be.load.read() > 0 {
			left = append(left, be)
		}
	}
	slices.SortFunc(left, func(a, b *backend) int { return a.addr.Compare(b.addr) })
	return left
}

// eligible returns the backends that may get connections. It shares the slice where it can: nearly all sets have weights
// that are all 1.
func eligible(backends []*backend) []*backend {
	quiesced := func(be *backend) bool { return be.weight.Load() == 0 }
	if !slices.ContainsFunc(backends, quiesced) {
		return backends
	}
	if rest := slices.DeleteFunc(slices.Clone(backends), quiesced); len(rest) > 0 {
		return rest
	}
	return backends
}

// quiesced reports whether be is to get no connections.
func (v *view) quiesced(be *backend) bool {
	return be.weight.Load() == 0 && len(v.eligible) < len(v.backends)
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
