package proxy

import (
	"fmt"
	"hash/fnv"
	"iter"

	"redial/config"
	"redial/proxy/intercept"
)

// allocator hands out proxy ports. A name's ports begin at a place in the range that depends on the name alone, so that a
// restarted process finds the ports its predecessor used: connection tracking entries of UDP flows stay right, and rules
// that are still in force point to the right Service.
//
// It is not safe for concurrent use.
type allocator struct {
	ports intercept.PortRange
	// kept is how many ports at the end of the range are not for frontends of TCP, but for what they share.
	kept int
	used map[portKey]struct{}
}

// portKey: the families are separate sockets, and so are the protocols.
type portKey struct {
	family   config.Family
	protocol config.Protocol
	port     uint16
}

func newAllocator(ports intercept.PortRange, kept int) *allocator {
	return &allocator{ports: ports, kept: kept, used: map[portKey]struct{}{}}
}

// candidates yields the free ports for a frontend, the preferred one first. Both families of a Service port prefer the
// same one; its pools differ.
func (a *allocator) candidates(key frontendKey) iter.Seq[uint16] {
	return func(yield func(uint16) bool) {
		size := a.ports.Size()
		if key.name.Protocol == config.TCP {
			size -= a.kept
		}
		if size <= 0 {
			return
		}
		h := fnv.New64a()
		fmt.Fprint(h, key.name)
		if key.pool == config.LocalPool {
			fmt.Fprint(h, " local")
		}
		start := int(h.Sum64() % uint64(size))
		for i := range size {
			port := a.ports.First + uint16((start+i)%size)
			if _, taken := a.used[a.key(key, port)]; !taken && !yield(port) {
				return
			}
		}
	}
}

// fromTheEnd yields the free ports for what frontends of TCP share, the last one of the range first.
func (a *allocator) fromTheEnd(family config.Family) iter.Seq[uint16] {
	return func(yield func(uint16) bool) {
		for port := int(a.ports.Last); port >= int(a.ports.First); port-- {
			if _, taken := a.used[portKey{family, config.TCP, uint16(port)}]; !taken && !yield(uint16(port)) {
				return
			}
		}
	}
}

func (a *allocator) take(key frontendKey, port uint16)    { a.used[a.key(key, port)] = struct{}{} }
func (a *allocator) release(key frontendKey, port uint16) { delete(a.used, a.key(key, port)) }

func (a *allocator) key(key frontendKey, port uint16) portKey {
	return portKey{key.family, key.name.Protocol, port}
}
