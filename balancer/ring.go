package balancer

import (
	"cmp"
	"math/bits"
	"slices"
	"sort"
)

// ring is a hash ring (Karger and others, "Consistent Hashing and Random Trees"): sh and dh. Each backend has points on
// a circle, and an address goes to the backend of the first point at or after its hash. If that backend is tried,
// ejected or full, the next point decides, so a retry goes to the same place every time and the addresses of a backend
// that is out are spread over all others.
//
// A backend's points depend on nothing but its address and weight. So when one leaves, its addresses are spread over the
// others and nobody else's move. The one exception is that weights above 128 share a scale, which changes when the
// greatest of them passes a power of two.
type ring struct {
	backends []*backend
	points   []point // sorted
	byDest   bool    // by the address that the connection is to, rather than by the client's
}

type point struct {
	at    uint32
	index uint32 // of the backend
}

// pointsPerBackend is how many points the heaviest backend has, and 8 bytes each: shares then differ by some 9 %
// (1/sqrt(128)). Who needs them closer takes mh.
const pointsPerBackend = 128

func newRing(backends []*backend, byDest bool) scheduler {
	s := &ring{backends: backends, byDest: byDest}
	var heaviest int64
	for _, be := range backends {
		heaviest = max(heaviest, be.share())
	}
	scale := int64(1) << bits.Len64(uint64(max(heaviest, 1)-1)) // the power of two that holds it
	for i, be := range backends {
		n := max(be.share()*pointsPerBackend/scale, 1)
		for k := range n {
			s.points = append(s.points, point{uint32(hashBackend(be.addr, uint64(k)+1) >> 32), uint32(i)})
		}
	}
	slices.SortFunc(s.points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.index, b.index))
	})
	return s
}

func (s *ring) next(r request) *backend {
	n := len(s.points)
	key := r.client
	if s.byDest {
		key = r.destination
	}
	hash := uint32(hashKey(key) >> 32)
	at := sort.Search(n, func(i int) bool { return s.points[i].at >= hash })
	for i := range n {
		be := s.backends[s.points[(at+i)%n].index]
		if r.takes(be) && r.claim(be) {
			return be
		}
		if i == 0 && !r.any(s.backends) {
			return nil
		}
	}
	return nil
}

func (s *ring) follow(backends []*backend) scheduler { return newRing(backends, s.byDest) }
