package balancer

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// The cases are those that kube-proxy's userspace balancer was held to, with two deliberate differences: the order is
// that of the addresses instead of a shuffled one, and updates keep the place instead of restarting the round.

var anyone = netip.MustParseAddr("192.0.2.1")

// addrs returns the backends with the given last octets, all on port 80.
func addrs(octets ...byte) []netip.AddrPort {
	list := make([]netip.AddrPort, len(octets))
	for i, o := range octets {
		list[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, o}), 80)
	}
	return list
}

// alike returns the same with a weight of 1 each.
func alike(octets ...byte) []Backend { return weighted(addrs(octets...), 1) }

// weighted gives each address a weight; the last one is for all that follow.
func weighted(list []netip.AddrPort, weights ...int) []Backend {
	bs := make([]Backend, len(list))
	for i, a := range list {
		bs[i] = Backend{a, weights[min(i, len(weights)-1)]}
	}
	return bs
}

func addr(octet byte) netip.AddrPort { return addrs(octet)[0] }

// startingAt returns a balancer whose rounds begin at the backend of that index.
func startingAt(first int, backends ...byte) *Balancer {
	b := newBalancer(func(n int) int { return first % n }, maxPins, nil)
	b.Update(Config{Backends: alike(backends...)})
	return b
}

// picks returns the last octets of the next n picks of anyone.
func picks(b *Balancer, n int) []byte {
	var got []byte
	for range n {
		backend, _ := b.Pick(anyone, nil)
		got = append(got, last(backend))
	}
	return got
}

// last is the last octet of the address, 0 for no backend.
func last(backend netip.AddrPort) byte {
	if !backend.IsValid() {
		return 0
	}
	return backend.Addr().As4()[3]
}

func TestFailsWithNoEndpoints(t *testing.T) {
	for name, b := range map[string]*Balancer{"never updated": New(nil), "updated to none": startingAt(0)} {
		t.Run(name, func(t *testing.T) {
			backend, ok := b.Pick(anyone, nil)
			require.False(t, ok)
			require.Equal(t, netip.AddrPort{}, backend)
			_, ok = b.Pick(anyone, addrs(1))
			require.False(t, ok)
			require.Zero(t, b.Len())
			require.Empty(t, b.Backends())
		})
	}
}

func TestSingleEndpoint(t *testing.T) {
	require.Equal(t, []byte{1, 1, 1}, picks(startingAt(0, 1), 3))
}

func TestMultipleEndpointsTakeTurnsInAddressOrder(t *testing.T) {
	require.Equal(t, []byte{1, 2, 3, 1, 2, 3, 1}, picks(startingAt(0, 3, 1, 2), 7))
	require.Equal(t, []byte{3, 1, 2, 3}, picks(startingAt(2, 1, 2, 3), 4))
}

// Three ports of one address are three backends.
func TestMultipleEndpointsOnOneAddress(t *testing.T) {
	ip := addr(1).Addr()
	b := startingAt(0)
	b.Update(Config{Backends: weighted([]netip.AddrPort{netip.AddrPortFrom(ip, 3), netip.AddrPortFrom(ip, 1), netip.AddrPortFrom(ip, 2)}, 1)})
	for _, port := range []uint16{1, 2, 3, 1} {
		backend, ok := b.Pick(anyone, nil)
		require.True(t, ok)
		require.Equal(t, port, backend.Port())
	}
}

// Service ports have a balancer each: lists and turns are their own, and emptying one does not disturb the other.
func TestMultiplePortsAndServiceRemoval(t *testing.T) {
	foo, bar := startingAt(0, 1, 2, 3), startingAt(0, 4, 5)
	require.Equal(t, []byte{1, 2}, picks(foo, 2))
	require.Equal(t, []byte{4}, picks(bar, 1))
	foo.Update(Config{})
	require.Equal(t, []byte{0}, picks(foo, 1))
	require.Equal(t, []byte{5, 4}, picks(bar, 2))
}

func TestInvalidAndDuplicateEndpointsAreIgnored(t *testing.T) {
	given := append(alike(2, 1, 2), weighted([]netip.AddrPort{{}, netip.AddrPortFrom(addr(3).Addr(), 0), netip.AddrPortFrom(netip.Addr{}, 80)}, 1)...)
	before := slices.Clone(given)
	b := startingAt(0)
	b.Update(Config{Backends: given})
	require.Equal(t, 2, b.Len())
	require.Equal(t, []byte{1, 2, 1}, picks(b, 3))
	require.Equal(t, before, given, "the caller's slice is not reordered")
}

// kube-proxy restarts at the head of the new order. Doing so on every update would favour the head: a rollout updates the
// set many times a second.
func TestUpdateKeepsThePlace(t *testing.T) {
	for _, tt := range []struct {
		name     string
		old, new []byte
		before   int // picks before the update
		want     []byte
	}{
		{"unchanged", []byte{1, 2, 3}, []byte{3, 2, 1}, 1, []byte{2, 3, 1}},
		{"next stays, one before it goes", []byte{1, 2, 3}, []byte{2, 3}, 1, []byte{2, 3, 2}},
		{"next stays, one is added before it", []byte{2, 4, 6}, []byte{1, 2, 4, 6}, 1, []byte{4, 6, 1, 2}},
		{"next goes", []byte{1, 2, 3}, []byte{1, 3}, 1, []byte{3, 1, 3}},
		{"next goes, and its successor was the wrap", []byte{1, 2, 3}, []byte{1, 2}, 2, []byte{1, 2, 1}},
		{"next and its successor go", []byte{1, 2, 3, 4}, []byte{1, 4}, 1, []byte{4, 1}},
		{"next goes, an addition in its place waits for its turn", []byte{1, 3, 5}, []byte{1, 4, 5}, 1, []byte{5, 1, 4}},
		{"emptied", []byte{1, 2}, nil, 1, []byte{0, 0}},
		{"many rounds", []byte{1, 2, 3}, []byte{1, 2, 3, 4}, 3*1000 + 2, []byte{3, 4, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := startingAt(0, tt.old...)
			picks(b, tt.before)
			b.Update(Config{Backends: alike(tt.new...)})
			require.Equal(t, tt.want, picks(b, len(tt.want)))
		})
	}
}

// With nothing left of the old order, a place in it would be the same on every node, so the round begins anew.
func TestReplacingAllBeginsANewRound(t *testing.T) {
	b := startingAt(2, 1, 2, 3)
	require.Equal(t, []byte{3}, picks(b, 1))
	b.Update(Config{Backends: alike(4, 5, 6)})
	require.Equal(t, []byte{6, 4, 5}, picks(b, 3))
	b.Update(Config{})
	b.Update(Config{Backends: alike(4, 5, 6)})
	require.Equal(t, []byte{6, 4, 5}, picks(b, 3))
}

func TestNewStartsAtRandom(t *testing.T) {
	seen := map[byte]bool{}
	for range 200 { // missing one of four by chance: 4*(3/4)^200
		b := New(nil)
		b.Update(Config{Backends: alike(1, 2, 3, 4)})
		seen[picks(b, 1)[0]] = true
	}
	require.Len(t, seen, 4)
}

func TestTriedAreNotPickedAgain(t *testing.T) {
	b := startingAt(0, 1, 2, 3)
	var tried []netip.AddrPort
	for _, want := range addrs(1, 2, 3) {
		backend, ok := b.Pick(anyone, tried)
		require.True(t, ok)
		require.Equal(t, want, backend)
		tried = append(tried, backend)
	}
	_, ok := b.Pick(anyone, tried)
	require.False(t, ok)
	require.Equal(t, []byte{1}, picks(b, 1), "a pick that finds nothing takes no turn")

	backend, ok := b.Pick(anyone, addrs(9, 2)) // a gone backend among the tried does not matter
	require.True(t, ok)
	require.Equal(t, addr(3), backend)
}

// A dead backend's connections go to all others alike. Looking ahead from the failed one would give its successor twice
// the share of the rest.
func TestDeadBackendsLoadIsSharedEvenly(t *testing.T) {
	for _, tt := range []struct {
		backends, dead []byte
	}{
		{[]byte{1, 2, 3}, []byte{2}},
		{[]byte{1, 2, 3, 4}, []byte{1}},
		{[]byte{1, 2, 3, 4, 5}, []byte{2, 3}},
		{[]byte{1, 2, 3, 4, 5, 6}, []byte{1, 3, 5}},
	} {
		for _, clients := range []int{1, 8} {
			t.Run(fmt.Sprintf("%v of %v, %d clients", tt.dead, tt.backends, clients), func(t *testing.T) {
				const each = 3000
				b := startingAt(0, tt.backends...)
				dead := map[byte]bool{}
				for _, d := range tt.dead {
					dead[d] = true
				}
				connect := func() {
					var tried []netip.AddrPort
					for {
						backend, ok := b.Pick(anyone, tried)
						if !ok {
							return
						}
						if !dead[last(backend)] {
							b.Report(anyone, backend, 0, nil)
							return
						}
						b.Report(anyone, backend, 0, errRefused)
						tried = append(tried, backend)
					}
				}
				var wg sync.WaitGroup
				for range clients {
					wg.Go(func() {
						for range each {
							connect()
						}
					})
				}
				wg.Wait()

				var total uint64
				low, high := ^uint64(0), uint64(0)
				for _, s := range b.Backends() {
					if dead[last(s.Addr)] {
						require.Zero(t, s.Connected)
						continue
					}
					total += s.Connected
					low, high = min(low, s.Connected), max(high, s.Connected)
				}
				require.EqualValues(t, clients*each, total)
				require.LessOrEqual(t, high-low, uint64(1))
			})
		}
	}
}
