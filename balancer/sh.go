package balancer

// newSourceHash makes sh: a client address always gets the same backend, by a hash ring. IPVS fills a fixed table with
// the backends in order of the list, so that there any change moves most clients.
func newSourceHash(backends []*backend, _ func(int) int) scheduler { return newRing(backends, false) }
