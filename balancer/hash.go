package balancer

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
)

// hashAddr is the same in every process and on every node, so that all of them send a client to the same backend.
func hashAddr(a netip.Addr, seed uint64) uint64 {
	b := a.As16()
	return mix(mix(seed^binary.BigEndian.Uint64(b[:8])) ^ binary.BigEndian.Uint64(b[8:]))
}

func hashBackend(a netip.AddrPort, seed uint64) uint64 {
	return mix(hashAddr(pinKey(a.Addr()), seed) ^ uint64(a.Port()))
}

// hashKey hashes the address that a choice depends on. Without one, any choice is as good as another, and all the same
// would be the worst.
func hashKey(a netip.Addr) uint64 {
	if !a.IsValid() {
		return rand.Uint64()
	}
	return hashAddr(pinKey(a), 0)
}

// mix makes every bit of the result depend on every bit of x (the finalizer of MurmurHash3, 64 bits).
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
