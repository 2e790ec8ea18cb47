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
	used  map[portKey]frontendKey
}

// portKey: the families are separate sockets, and so are the protocols.
type portKey struct {
	family   config.Family
	protocol config.Protocol
	port     uint16
}

func newAllocator(ports intercept.PortRange) *allocator {
	return &allocator{ports: ports, used: map[portKey]frontendKey{}}
}

// candidates yields the free ports for a frontend, the preferred one first. Both families of a Service port prefer the
// same one; its pools differ.
func (a *allocator) candidates(key frontendKey) iter.Seq[uint16] {
	return func(yield func(uint16) bool) {
		size := a.ports.Size()
		if size == 0 {
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

func (a *allocator) take(key frontendKey, port uint16)    { a.used[a.key(key, port)] = key }
func (a *allocator) release(key frontendKey, port uint16) { delete(a.used, a.key(key, port)) }

func (a *allocator) key(key frontendKey, port uint16) portKey {
	return portKey{key.family, key.name.Protocol, port}
}
