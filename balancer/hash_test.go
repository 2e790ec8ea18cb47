package balancer

import (
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

const hosts = 20000

// assignment is where each of the hosts goes.
func assignment(b *Balancer, tried ...netip.AddrPort) []netip.AddrPort {
	list := make([]netip.AddrPort, hosts)
	for i := range list {
		list[i], _ = b.PickFor(hostOf(i), hostOf(i), tried)
	}
	return list
}

// count returns how many hosts each of n backends has.
func count(list []netip.AddrPort, b *Balancer) []int {
	counts := make([]int, b.Len())
	for i, s := range b.Backends() {
		for _, a := range list {
			if a == s.Addr {
				counts[i]++
			}
		}
	}
	return counts
}

func hashSchedulers() []Scheduler { return []Scheduler{SourceHash, DestinationHash, Maglev} }

func TestHashSchedulersAreConsistent(t *testing.T) {
	for _, s := range hashSchedulers() {
		for _, n := range []int{2, 4, 10, 40} {
			weights := uniform(n, 1)
			b, other := scheduled(s, weights...), newBalancer(func(n int) int { return n - 1 }, maxPins, nil)
			before := assignment(b)
			require.Equal(t, before, assignment(b), "%s: the same every time", s)

			// On another node, where the set had another history.
			other.Update(Config{Scheduler: s, Backends: numbered(uniform(n+3, 1)...)})
			other.Update(Config{Scheduler: s, Backends: numbered(weights...)})
			require.Equal(t, before, assignment(other), "%s: the same everywhere", s)

			gone := b.Backends()[n/2].Addr
			rest := slices.DeleteFunc(numbered(weights...), func(be Backend) bool { return be.Addr == gone })
			b.Update(Config{Scheduler: s, Backends: rest})
			after := assignment(b)
			moved := 0
			for i := range before {
				if before[i] != gone && before[i] != after[i] {
					moved++
				}
			}
			if s == Maglev {
				// The paper (section 5.3) sees some per cent at most with tables a hundred times the set.
				require.LessOrEqual(t, moved, hosts*5/100, "%d backends", n)
			} else {
				require.Zero(t, moved, "%s, %d backends: clients of others moved", s, n)
			}

			b.Update(Config{Scheduler: s, Backends: numbered(weights...)})
			require.Equal(t, before, assignment(b), "%s: all return", s)
		}
	}
}

func TestHashSchedulersAreEven(t *testing.T) {
	for _, s := range hashSchedulers() {
		b := scheduled(s, uniform(10, 1)...)
		for _, n := range count(assignment(b), b) {
			if s == Maglev { // exact but for the draw of the hosts
				within(t, hosts, 0.1, n, s)
			} else { // five deviations of what 128 points of exponential gaps add up to
				require.InDelta(t, hosts/10, n, hosts/10*5/math.Sqrt(pointsPerBackend), s)
			}
		}
		b = scheduled(s, 6, 3, 1, 0)
		got := count(assignment(b), b)
		require.Zero(t, got[3])
		for i, p := range []float64{0.6, 0.3, 0.1} {
			if s == Maglev {
				within(t, hosts, p, got[i], s)
			} else {
				require.InDelta(t, hosts*p, got[i], hosts*p*5/math.Sqrt(pointsPerBackend*[]float64{6, 3, 1}[i]/8), s)
			}
		}
	}
}

// A retry, and every connection as long as a backend is out, goes to the same other place, and not all to one.
func TestHashSchedulersPassOverTheSameWay(t *testing.T) {
	for _, s := range hashSchedulers() {
		b := scheduled(s, uniform(6, 1)...)
		dead := b.Backends()[2].Addr
		before, retry := assignment(b), assignment(b, dead)
		for range 3 {
			b.Report(netip.Addr{}, dead, 0, errRefused)
		}
		require.Equal(t, retry, assignment(b), s)
		var heirs []netip.AddrPort
		for i := range before {
			if before[i] != dead {
				require.Equal(t, before[i], retry[i], s)
			} else {
				heirs = append(heirs, retry[i])
			}
		}
		for i, n := range count(heirs, b) {
			if i != 2 {
				require.InDelta(t, len(heirs)/5, n, float64(len(heirs)/5)*0.6, "%s: %v", s, count(heirs, b))
			}
		}
	}
}

func TestHashSchedulersKeys(t *testing.T) {
	distinct := func(s Scheduler, key func(i int) (client, destination netip.Addr)) int {
		b := scheduled(s, uniform(10, 1)...)
		seen := map[netip.AddrPort]bool{}
		for i := range 500 {
			c, d := key(i)
			be, _ := b.PickFor(c, d, nil)
			seen[be] = true
		}
		return len(seen)
	}
	byClient := func(i int) (netip.Addr, netip.Addr) { return hostOf(i), hostOf(1) }
	byDestination := func(i int) (netip.Addr, netip.Addr) { return hostOf(1), hostOf(i) }
	mapped := func(i int) (netip.Addr, netip.Addr) {
		a := hostOf(1)
		if i%2 > 0 {
			a = netip.AddrFrom16(a.As16())
		}
		return a, a
	}
	unknown := func(int) (netip.Addr, netip.Addr) { return netip.Addr{}, netip.Addr{} }
	for _, s := range hashSchedulers() {
		client, destination := 10, 1
		if s == DestinationHash {
			client, destination = 1, 10
		}
		require.Equal(t, client, distinct(s, byClient), s)
		require.Equal(t, destination, distinct(s, byDestination), s)
		require.Equal(t, 1, distinct(s, mapped), s)
		require.Equal(t, 10, distinct(s, unknown), s)
	}
}

// Every slot belongs to somebody, by weight to within one slot where weights are alike.
func TestMaglevTable(t *testing.T) {
	for _, n := range []int{1, 2, 7, 100, 400, 401, 1000} {
		m := scheduled(Maglev, uniform(n, 3)...).view.Load().scheduler.(*maglev)
		require.Len(t, m.slots, map[bool]int{true: smallTable, false: largeTable}[n <= smallTableFor])
		counts := make([]int, n)
		for _, i := range m.slots {
			counts[i]++
		}
		require.LessOrEqual(t, slices.Max(counts)-slices.Min(counts), 1, n)
	}
	m := scheduled(Maglev, 65535, 1).view.Load().scheduler.(*maglev)
	require.NotContains(t, m.slots, uint16(1), "too light for a slot")
}
