package balancer

import "net/netip"

// scheduler is the order in which the backends of a view are used. It knows nothing of clients.
type scheduler interface {
	// next returns the backend for the next connection, not one of tried, or nil if that leaves none. Any number of
	// goroutines call it at once; it must neither block nor allocate.
	next(tried []netip.AddrPort) *backend
	// follow returns the scheduler for the set that replaces this one's, carrying over what the order depends on. The
	// backends are sorted by address; those that stay are the same pointers. Picks may still be going on here.
	follow(backends []*backend) scheduler
}
