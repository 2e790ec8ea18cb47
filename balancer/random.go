package balancer

import "math/rand/v2"

// random draws a backend by chance, each as likely as it has weight.
type random struct {
	backends []*backend
	sums     tally
}

func newRandom(backends []*backend, _ func(int) int) scheduler {
	return &random{backends, newTally(backends)}
}

func (s *random) next(r request) *backend { return take(&r, s, s.backends) }

func (s *random) draw() *backend {
	return s.backends[s.sums.find(rand.Uint64N(s.sums.total()))]
}

func (s *random) follow(backends []*backend) scheduler { return newRandom(backends, nil) }
