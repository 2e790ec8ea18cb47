package balancer

import "sync/atomic"

// least takes the backend that is the first by some order of their loads: lc, wlc, sed and nq. Loads include the picks in
// flight, or all connections of a burst would go to the backend that was the least loaded when it began. Of equals it
// takes the one that comes first from a place that moves on with every pick: IPVS takes the first of the list, which on
// many nodes at a time would be the same.
//
// The claim holds only for the load that the choice was made by, else the choice is made again. So while connections only
// come, the one chosen is the first by the order at that very moment, however many goroutines pick.
//
// A pick looks at every backend: some 10 microseconds for a thousand of them. For more there is p2c.
type least struct {
	backends []*backend
	before   func(a, b candidate) bool
	turn     atomic.Uint64
	first    func(n int) int
}

// candidate is a backend as an order sees it.
type candidate struct {
	load   uint64 // connections and picks in flight
	ramp   uint64 // the part of its weight that counts now, in 1/fullRamp; less than that only in slow start
	weight uint64 // times ramp; never 0
}

func newLeast(backends []*backend, first func(int) int, before func(a, b candidate) bool) scheduler {
	l := &least{backends: backends, before: before, first: first}
	if len(backends) > 0 {
		l.turn.Store(uint64(first(len(backends))))
	}
	return l
}

func (l *least) next(r request) *backend {
	n := uint64(len(l.backends))
	if n == 0 {
		return nil
	}
	for {
		var best *backend
		var of candidate
		var seen reading
		at := (l.turn.Add(1) - 1) % n
		for range n {
			be := l.backends[at]
			if at++; at == n {
				at = 0
			}
			if !r.takes(be) {
				continue
			}
			now := be.load.read()
			if c := r.candidate(be, now); best == nil || l.before(c, of) {
				best, of, seen = be, c, now
			}
		}
		if best == nil || r.claimIf(best, seen) {
			return best
		}
	}
}

func (l *least) follow(backends []*backend) scheduler {
	return newLeast(backends, l.first, l.before)
}

func (r *request) candidate(be *backend, n reading) candidate {
	ramp := r.ramp(be)
	return candidate{n.total(), uint64(ramp), uint64(be.share() * ramp)}
}

// lighter compares (load+extra)/weight without dividing. Loads are below 2^33, weights below 2^26.
func lighter(a, b candidate, extra uint64) bool {
	return (a.load+extra)*b.weight < (b.load+extra)*a.weight
}
