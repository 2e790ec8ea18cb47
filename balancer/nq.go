package balancer

// newNeverQueue makes nq: an idle backend if there is one, so that no connection waits behind another while somebody has
// nothing to do; else, and among several idle ones, as sed does.
func newNeverQueue(backends []*backend, first func(int) int) scheduler {
	return newLeast(backends, first, func(a, b candidate) bool {
		if (a.load == 0) != (b.load == 0) {
			return a.load == 0
		}
		return shorterDelay(a, b)
	})
}
