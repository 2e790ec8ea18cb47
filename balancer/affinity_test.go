package balancer

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// client returns one of a few thousand client addresses.
func client(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}) }

func sticky(timeout time.Duration, backends ...byte) *Balancer {
	b := startingAt(0)
	b.Update(Config{Backends: alike(backends...), Affinity: timeout})
	return b
}

// pickFor picks for client n and returns the last octet.
func pickFor(b *Balancer, n int, tried ...netip.AddrPort) byte {
	backend, _ := b.Pick(client(n), tried)
	return last(backend)
}

// pickEach picks once for each of the clients 1 to n.
func pickEach(b *Balancer, n int) []byte {
	var got []byte
	for c := 1; c <= n; c++ {
		got = append(got, pickFor(b, c))
	}
	return got
}

func TestStickyClientsStay(t *testing.T) {
	b := sticky(time.Hour, 1, 2)
	require.Equal(t, []byte{1, 2, 1}, pickEach(b, 3), "the third client wraps")
	for range 3 {
		require.Equal(t, []byte{1, 2, 1}, pickEach(b, 3))
	}
	require.Equal(t, 3, b.Pins())
}

func TestStickyRemoveOne(t *testing.T) {
	b := sticky(time.Hour, 1, 2, 3)
	require.Equal(t, []byte{1, 2, 3, 1, 2, 3}, pickEach(b, 6))
	b.Update(Config{Backends: alike(1, 2), Affinity: time.Hour})
	require.Equal(t, []byte{1, 2, 1, 1, 2, 2}, pickEach(b, 6), "only clients of the removed one move")
	b.Update(Config{Backends: alike(1, 2, 4), Affinity: time.Hour})
	require.Equal(t, []byte{1, 2, 1, 1, 2, 2}, pickEach(b, 6))
	require.Equal(t, []byte{1, 2, 4}, []byte{pickFor(b, 7), pickFor(b, 8), pickFor(b, 9)})
}

func TestStickyUpdatesReplaceAll(t *testing.T) {
	b := sticky(time.Hour, 1, 2, 3)
	pickEach(b, 3)
	b.Update(Config{Backends: alike(4, 5), Affinity: time.Hour})
	require.Zero(t, b.Pins())
	require.Equal(t, []byte{4, 5, 4}, pickEach(b, 3))
	require.Equal(t, []byte{4, 5, 4}, pickEach(b, 3))
	b.Update(Config{Affinity: time.Hour})
	require.Equal(t, []byte{0, 0, 0}, pickEach(b, 3))
}

func TestStickyServiceRemovalLeavesOthers(t *testing.T) {
	foo, bar := sticky(time.Hour, 1, 2), sticky(time.Hour, 3, 4)
	pickEach(foo, 3)
	require.Equal(t, []byte{3, 4, 3}, pickEach(bar, 3))
	foo.Update(Config{})
	require.Equal(t, []byte{3, 4, 3}, pickEach(bar, 3))
}

func TestStickyScaleToZeroAndBack(t *testing.T) {
	b := sticky(time.Hour, 1, 2)
	pickEach(b, 2)
	b.Update(Config{Affinity: time.Hour})
	require.Equal(t, []byte{0}, pickEach(b, 1))
	b.Update(Config{Backends: alike(1, 2), Affinity: time.Hour})
	want := pickFor(b, 1)
	for range 100 {
		require.Equal(t, want, pickFor(b, 1))
	}
}

// The same address after an absence may be another pod, which knows nothing of the client.
func TestStickyReturningAddressIsAnotherBackend(t *testing.T) {
	b := sticky(time.Hour, 1, 2, 3)
	require.Equal(t, []byte{1, 2}, pickEach(b, 2))
	b.Update(Config{Backends: alike(2, 3), Affinity: time.Hour})
	b.Update(Config{Backends: alike(1, 2, 3), Affinity: time.Hour})
	require.Equal(t, 1, b.Pins())
	require.Equal(t, []byte{3, 2}, pickEach(b, 2))
}

// Clients pinned to a dead backend connect elsewhere at the first retry and stay there, though it is still in the set.
func TestStickyEndpointFails(t *testing.T) {
	b := sticky(time.Hour, 1, 2, 3)
	require.Equal(t, []byte{1, 2, 3, 1}, pickEach(b, 4))
	b.Report(client(1), addr(1), 0, errRefused)
	require.EqualValues(t, 2, pickFor(b, 1, addr(1)))
	b.Report(client(1), addr(2), 0, nil)
	require.Equal(t, []byte{2, 2, 3, 1}, pickEach(b, 4), "re-pinned; client 4 has not failed yet")
	b.Report(client(4), addr(1), 0, errRefused)
	require.EqualValues(t, 3, pickFor(b, 4, addr(1)))
	require.Equal(t, []byte{2, 2, 3, 3}, pickEach(b, 4))

	b.Report(client(2), addr(3), 0, errRefused)
	require.EqualValues(t, 2, pickFor(b, 2), "a failure elsewhere does not touch the pin")
}

// Dialling a second backend beside a slow one moves the client only if the slow one is reported failed.
func TestStickyHedge(t *testing.T) {
	b := sticky(time.Hour, 1, 2, 3)
	require.EqualValues(t, 1, pickFor(b, 1))
	require.EqualValues(t, 2, pickFor(b, 1, addr(1)))
	b.Report(client(1), addr(1), 0, nil)
	require.EqualValues(t, 1, pickFor(b, 1), "the slow one won")

	require.EqualValues(t, 3, pickFor(b, 1, addr(1)))
	b.Report(client(1), addr(1), 0, errRefused)
	b.Report(client(1), addr(3), 0, nil)
	require.EqualValues(t, 3, pickFor(b, 1), "the other won: the client stays where it connected")
}

// Parallel connections of one client that fail on the same backend move to the same other one.
func TestStickyParallelRetriesAgree(t *testing.T) {
	b := sticky(time.Hour, 1, 2, 3)
	require.EqualValues(t, 1, pickFor(b, 1))
	for range 3 {
		b.Report(client(1), addr(1), 0, errRefused)
		require.EqualValues(t, 2, pickFor(b, 1, addr(1)))
	}
}

func TestStickyFirstConnectionsAgree(t *testing.T) {
	for c := range 200 {
		b := sticky(time.Hour, 1, 2, 3, 4)
		var got [8]byte
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() { got[i] = pickFor(b, c) })
		}
		wg.Wait()
		for _, g := range got {
			require.Equal(t, got[0], g)
		}
	}
}

func TestStickySwitchedOffAndOn(t *testing.T) {
	b := sticky(time.Hour, 1, 2)
	require.Equal(t, []byte{1, 1}, []byte{pickFor(b, 1), pickFor(b, 1)})
	for _, off := range []time.Duration{0, -1} {
		b.Update(Config{Backends: alike(1, 2), Affinity: off})
		require.Zero(t, b.Pins())
		require.Nil(t, b.view.Load().pins, "the memory is given back")
		require.Equal(t, []byte{2, 1}, []byte{pickFor(b, 1), pickFor(b, 1)})
		b.Update(Config{Backends: alike(1, 2), Affinity: time.Hour})
		require.Zero(t, b.Pins(), "pins from before do not come back")
		require.Equal(t, []byte{2, 2}, []byte{pickFor(b, 1), pickFor(b, 1)})
		pickFor(b, 2)
	}
}

func TestStickyClientKey(t *testing.T) {
	for _, same := range [][]string{
		{"192.0.2.7", "::ffff:192.0.2.7"},
		{"fe80::7", "fe80::7%eth0", "fe80::7%eth1"},
	} {
		b := sticky(time.Hour, 1, 2, 3)
		for _, c := range same {
			backend, ok := b.Pick(netip.MustParseAddr(c), nil)
			require.True(t, ok)
			require.Equal(t, addr(1), backend, c)
		}
		require.Equal(t, 1, b.Pins())
	}
}

func TestStickyUnknownClientIsNotPinned(t *testing.T) {
	b := sticky(time.Hour, 1, 2)
	for _, want := range addrs(1, 2, 1) {
		backend, ok := b.Pick(netip.Addr{}, nil)
		require.True(t, ok)
		require.Equal(t, want, backend)
		b.Report(netip.Addr{}, backend, 0, nil)
	}
	require.Zero(t, b.Pins())
}

func TestPinsAreBounded(t *testing.T) {
	b := newBalancer(func(int) int { return 0 }, 3, nil)
	b.Update(Config{Backends: alike(1, 2, 3, 4, 5), Affinity: time.Hour})
	require.Equal(t, []byte{1, 2, 3}, pickEach(b, 3))
	b.Report(client(1), addr(1), 0, nil) // in use: 2 is now the longest unused
	require.EqualValues(t, 4, pickFor(b, 4))
	require.Equal(t, 3, b.Pins())
	require.EqualValues(t, 1, b.Counters().Evictions)
	require.EqualValues(t, 1, pickFor(b, 1))
	require.EqualValues(t, 3, pickFor(b, 3), "picking alone is no use: 3 is the longest unused and makes room for 2")
	require.EqualValues(t, 5, pickFor(b, 2))
	require.EqualValues(t, 1, pickFor(b, 3))
	require.EqualValues(t, 3, b.Counters().Evictions)
}
