package balancer

// newDestinationHash makes dh: what is sent to one address of the Service gets the same backend whoever sends it, by a
// hash ring. It is of use where a Service has many addresses, such as external IPs of which each is a tenant or a
// cached site.
func newDestinationHash(backends []*backend, _ func(int) int) scheduler {
	return newRing(backends, true)
}
