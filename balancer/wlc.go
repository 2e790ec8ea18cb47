package balancer

// newWeightedLeast makes wlc: the backend with the fewest connections by weight, that is, the least load/weight. Idle
// backends are all alike, however heavy.
func newWeightedLeast(backends []*backend, first func(int) int) scheduler {
	return newLeast(backends, first, func(a, b candidate) bool { return lighter(a, b, 0) })
}
