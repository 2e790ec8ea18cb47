package balancer

// newShortestDelay makes sed: the backend where the new connection can expect the shortest delay, that is, the least
// (load+1)/weight. Unlike wlc it sends the first connections to heavy backends, and may leave a light one idle.
func newShortestDelay(backends []*backend, first func(int) int) scheduler {
	return newLeast(backends, first, shorterDelay)
}

func shorterDelay(a, b candidate) bool { return lighter(a, b, 1) }
