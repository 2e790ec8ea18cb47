package balancer

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Backend is one backend of a Config.
type Backend struct {
	Addr netip.AddrPort
	// Weight is its share relative to the others, for the schedulers that have regard to it. 0 (or less): quiesced, it
	// gets no new connections, pinned clients and retries included, unless no backend has weight. At most 65535, as in
	// IPVS; more is 65535.
	Weight int
}

const maxWeight = 65535

// backend is one incarnation of an address in the set: it begins when the address enters and ends when it leaves.
// Pointers tell incarnations apart. There are hundreds of thousands of them, so what few need is behind a pointer.
type backend struct {
	addr netip.AddrPort

	picked, connected, failed atomic.Uint64
	last                      atomic.Pointer[failure]
	load                      *load
	connects                  estimate
	weight                    atomic.Int32 // as in Config; written by Update only
	strikes                   atomic.Int32 // for failed dials since one succeeded
	suspectUntil              atomic.Int64 // time.Duration by Balancer.now; 0: no suspect
	ejection                  atomic.Pointer[ejection]
}

type failure struct {
	err error
	at  time.Time
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

// usable returns those of list with a valid address, sorted, each once, with weights in range.
func usable(list []Backend) []Backend {
	valid := make([]Backend, 0, len(list))
	for _, b := range list {
		if b.Addr.IsValid() && b.Addr.Port() != 0 {
			b.Weight = min(max(b.Weight, 0), maxWeight)
			valid = append(valid, b)
		}
	}
	slices.SortStableFunc(valid, func(a, b Backend) int { return a.Addr.Compare(b.Addr) })
	return slices.CompactFunc(valid, func(a, b Backend) bool { return a.Addr == b.Addr })
}
