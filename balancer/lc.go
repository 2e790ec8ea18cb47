package balancer

// newLeastConnection makes lc: the backend with the fewest connections, whatever the weights. (IPVS charges 256 for an
// active connection and 1 for an inactive one; here there are no inactive ones.)
func newLeastConnection(backends []*backend, first func(int) int) scheduler {
	return newLeast(backends, first, func(a, b candidate) bool {
		a.weight, b.weight = a.ramp, b.ramp
		return lighter(a, b, 0)
	})
}
