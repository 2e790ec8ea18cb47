package balancer

import (
	"net/netip"
	"slices"
	"sync/atomic"
)

// roundRobin gives the backends turns in the order of their addresses.
type roundRobin struct {
	backends []*backend
	turn     atomic.Uint64 // number of the next turn; it belongs to backends[turn mod len]
	first    func(n int) int
}

// newRoundRobin begins a round at the backend that first chooses.
func newRoundRobin(backends []*backend, first func(n int) int) *roundRobin {
	r := &roundRobin{backends: backends, first: first}
	if len(backends) > 0 {
		r.turn.Store(uint64(first(len(backends))))
	}
	return r
}

// next takes turns until one belongs to an untried backend. Taking them, rather than looking ahead from one, is what
// shares out a dead backend's load: each turn of a live backend is used exactly once, in whatever order retries and
// first attempts interleave, while looking ahead would give the successor both its own turns and the dead one's.
func (r *roundRobin) next(tried []netip.AddrPort) *backend {
	n := uint64(len(r.backends))
	if len(tried) == 0 && n > 0 {
		return r.backends[(r.turn.Add(1)-1)%n]
	}
	if !r.anyUntried(tried) {
		return nil
	}
	// Like a compare-and-swap loop: a turn that comes back to a tried backend means that other goroutines took the ones
	// between.
	for {
		if be := r.backends[(r.turn.Add(1)-1)%n]; !slices.Contains(tried, be.addr) {
			return be
		}
	}
}

// anyUntried keeps a pick that cannot succeed from using up turns. It looks at no more than len(tried)+1 backends.
func (r *roundRobin) anyUntried(tried []netip.AddrPort) bool {
	return slices.ContainsFunc(r.backends, func(be *backend) bool { return !slices.Contains(tried, be.addr) })
}

// follow keeps the place: the backend whose turn it is, or else the first after it that stays, comes next.
func (r *roundRobin) follow(backends []*backend) scheduler {
	n := uint64(len(r.backends))
	turn := r.turn.Load()
	for i := range n {
		be := r.backends[(turn+i)%n]
		if at, ok := search(backends, be.addr); ok && backends[at] == be {
			next := &roundRobin{backends: backends, first: r.first}
			next.turn.Store(uint64(at))
			return next
		}
	}
	return newRoundRobin(backends, r.first)
}
