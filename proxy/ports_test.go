package proxy

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"redial/config"
	"redial/proxy/intercept"
)

func portOf(a *allocator, key frontendKey) (uint16, bool) {
	for port := range a.candidates(key) {
		a.take(key, port)
		return port, true
	}
	return 0, false
}

func key(service string, family config.Family) frontendKey {
	return frontendKey{name(service, "http"), config.ClusterPool, family}
}

func TestAllocatorOfAnEmptyRange(t *testing.T) {
	_, ok := portOf(newAllocator(intercept.PortRange{}, 0), key("a", config.IPv4))
	assert.False(t, ok)
}

func TestAllocatorIsExhaustedAndRecovers(t *testing.T) {
	a := newAllocator(intercept.PortRange{First: 1, Last: 1}, 0)
	for range 2 {
		port, ok := portOf(a, key("a", config.IPv4))
		assert.True(t, ok)
		assert.EqualValues(t, 1, port)
		_, ok = portOf(a, key("b", config.IPv4))
		assert.False(t, ok)
		a.release(key("a", config.IPv4), 1)
	}
}

func TestAllocatorUsesEveryPort(t *testing.T) {
	a := newAllocator(intercept.PortRange{First: 101, Last: 200}, 0)
	seen := map[uint16]bool{}
	for i := range 100 {
		port, ok := portOf(a, key(fmt.Sprint(i), config.IPv4))
		assert.True(t, ok)
		assert.False(t, seen[port])
		assert.True(t, a.ports.Contains(port))
		seen[port] = true
	}
	_, ok := portOf(a, key("one too many", config.IPv4))
	assert.False(t, ok)
}

// The ports of a process that restarts are those it had: they follow from the names.
func TestAllocatorIsStable(t *testing.T) {
	r := intercept.PortRange{First: 61000, Last: 65535}
	before, after := newAllocator(r, 0), newAllocator(r, 0)
	spread := map[uint16]bool{}
	for i := range 50 {
		k := key(fmt.Sprint(i), config.IPv4)
		want, _ := portOf(before, k)
		got, _ := portOf(after, k)
		assert.Equal(t, want, got)
		spread[want/100] = true
	}
	assert.Greater(t, len(spread), 10, "names are spread over the range")
}

func TestAllocatorGivesBothFamiliesOnePort(t *testing.T) {
	a := newAllocator(intercept.PortRange{First: 61000, Last: 65535}, 0)
	v4, _ := portOf(a, key("a", config.IPv4))
	v6, _ := portOf(a, key("a", config.IPv6))
	assert.Equal(t, v4, v6)
	udp := key("a", config.IPv4)
	udp.name.Protocol = config.UDP
	for port := range a.candidates(udp) {
		assert.NotContains(t, a.used, a.key(udp, port), "TCP and UDP do not share")
		break
	}
}

// The cluster's frontend and the node's do not depend on which of them exists.
func TestAllocatorKeepsPoolsApart(t *testing.T) {
	r := intercept.PortRange{First: 61000, Last: 65535}
	ours := key("a", config.IPv4)
	ours.pool = config.LocalPool
	alone, _ := portOf(newAllocator(r, 0), ours)
	both := newAllocator(r, 0)
	cluster, _ := portOf(both, key("a", config.IPv4))
	beside, _ := portOf(both, ours)
	assert.Equal(t, alone, beside)
	assert.NotEqual(t, cluster, beside)
}
