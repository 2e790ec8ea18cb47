package balancer

import "math/rand/v2"

// powerOfTwo (p2c) draws two backends by chance and weight and takes the one with less load by weight. Nearly as even as
// wlc, at a cost that does not grow with the set; and where many proxies act on what each of them alone has counted, they
// do not all run to the same backend (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing").
type powerOfTwo struct {
	random
}

func newPowerOfTwo(backends []*backend, _ func(int) int) scheduler {
	return &powerOfTwo{random{backends, newTally(backends)}}
}

func (p *powerOfTwo) next(r request) *backend {
	if len(p.backends) == 0 {
		return nil
	}
	for range 4 {
		a, b := p.pair()
		switch takesA, takesB := r.takes(a), r.takes(b); {
		case !takesA && !takesB:
			continue
		case !takesA, takesB && lighter(r.candidate(b, b.load.read()), r.candidate(a, a.load.read()), 0):
			a = b
		}
		if r.claim(a) {
			return a
		}
	}
	return drawAny(&r, p.backends) // most are out, or many are tried
}

// pair draws two backends, different ones unless there is but one. The second is drawn from what is left of the line
// without the first.
func (p *powerOfTwo) pair() (a, b *backend) {
	i := p.sums.find(rand.Uint64N(p.sums.total()))
	if len(p.backends) == 1 {
		return p.backends[i], p.backends[i]
	}
	var from uint64
	if i > 0 {
		from = p.sums[i-1]
	}
	at := rand.Uint64N(p.sums.total() - (p.sums[i] - from))
	if at >= from {
		at += p.sums[i] - from
	}
	return p.backends[i], p.backends[p.sums.find(at)]
}

func (p *powerOfTwo) follow(backends []*backend) scheduler { return newPowerOfTwo(backends, nil) }
