package balancer

import "sync/atomic"

// roundRobin (rr) gives the backends turns in the order of their addresses, whatever their weights.
type roundRobin struct {
	backends []*backend
	turn     atomic.Uint64 // number of the next turn; it belongs to backends[turn mod len]
	first    func(n int) int
}

// newRoundRobin begins a round at the backend that first chooses.
func newRoundRobin(backends []*backend, first func(n int) int) scheduler {
	r := &roundRobin{backends: backends, first: first}
	if len(backends) > 0 {
		r.turn.Store(uint64(first(len(backends))))
	}
	return r
}

func (r *roundRobin) next(req request) *backend { return take(&req, r, r.backends) }

func (r *roundRobin) draw() *backend {
	return r.backends[(r.turn.Add(1)-1)%uint64(len(r.backends))]
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
