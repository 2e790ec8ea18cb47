package balancer

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// backend is one incarnation of an address in the set: it begins when the address enters and ends when it leaves.
// Pointers tell incarnations apart.
type backend struct {
	addr netip.AddrPort

	picked, connected, failed atomic.Uint64
	last                      atomic.Pointer[failure]

	// active outlives the incarnation. A pod that turns unready and ready again still holds its connections, and those
	// connections are released by address; with a count of its own, the second incarnation would be charged for them.
	active *atomic.Int64
}

type failure struct {
	err error
	at  time.Time
}

// release takes one from active but never below zero: the connection may have been reported while the backend was gone
// and not counted.
func (be *backend) release() {
	for {
		n := be.active.Load()
		if n <= 0 || be.active.CompareAndSwap(n, n-1) {
			return
		}
	}
}

// find returns the backend at addr, or nil.
func find(backends []*backend, addr netip.AddrPort) *backend {
	if i, ok := search(backends, addr); ok {
		return backends[i]
	}
	return nil
}

// search looks addr up in backends, which are sorted by address. It needs no memory beside the slice, which counts with
// tens of thousands of balancers, most of them of a few backends.
func search(backends []*backend, addr netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(backends, addr, func(be *backend, a netip.AddrPort) int { return be.addr.Compare(a) })
}

// usable returns the valid addresses of list, sorted, each once.
func usable(list []netip.AddrPort) []netip.AddrPort {
	valid := make([]netip.AddrPort, 0, len(list))
	for _, addr := range list {
		if addr.IsValid() && addr.Port() != 0 {
			valid = append(valid, addr)
		}
	}
	slices.SortFunc(valid, netip.AddrPort.Compare)
	return slices.Compact(valid)
}
