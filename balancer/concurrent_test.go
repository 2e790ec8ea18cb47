package balancer

import (
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSharesAreExactUnderConcurrency(t *testing.T) {
	const pickers, each = 8, 7 * 500
	b := startingAt(3, 1, 2, 3, 4, 5, 6, 7)
	var wg sync.WaitGroup
	for range pickers {
		wg.Go(func() {
			for range each {
				b.Pick(anyone, nil)
			}
		})
	}
	wg.Wait()
	for _, s := range b.Backends() {
		require.EqualValues(t, pickers*each/7, s.Picked, s.Addr)
	}
}

// While sets come and go, a pick may return a backend of any set that was current at some time between its start and its
// end, and of no other. The sets share no backend, so the backend tells its set.
func TestPicksDuringUpdatesSeeOldOrNew(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Hour} {
		b := startingAt(0)
		b.Update(Config{Backends: weighted(set(0), 1), Affinity: timeout})
		var begun, done atomic.Int64 // numbers of the last update begun and done
		var stop atomic.Bool
		var wrong atomic.Int64
		var wg sync.WaitGroup
		for c := range 4 {
			wg.Go(func() {
				for n := 0; !stop.Load(); n++ {
					low := done.Load()
					backend, ok := b.Pick(client(c), nil)
					high := begun.Load()
					if at := int64(backend.Port()); !ok || at-1 < low || at-1 > high {
						wrong.Add(1)
					}
					b.Report(client(c), backend, 0, []error{nil, errRefused}[n%2])
					b.Release(backend)
				}
			})
		}
		wg.Go(func() {
			for !stop.Load() {
				b.Backends()
				b.Pins()
			}
		})
		for n := int64(1); n <= 3000; n++ {
			begun.Store(n)
			b.Update(Config{Backends: weighted(set(n), 1), Affinity: timeout})
			done.Store(n)
		}
		stop.Store(true)
		wg.Wait()
		require.Zero(t, wrong.Load())
	}
}

// set is the n-th set of backends: same addresses, another port.
func set(n int64) (s []netip.AddrPort) {
	for _, a := range addrs(1, 2, 3) {
		s = append(s, netip.AddrPortFrom(a.Addr(), uint16(n+1)))
	}
	return s
}

// Each update follows the one before it: two that followed the same one would lose what the other carried over.
func TestConcurrentUpdatesAreSerialised(t *testing.T) {
	var inside, overlaps atomic.Int64
	b := newBalancer(func(int) int { // called within an update to a set of which no backend was there before
		if inside.Add(1) > 1 {
			overlaps.Add(1)
		}
		runtime.Gosched()
		inside.Add(-1)
		return 0
	}, maxPins, nil)
	var wg sync.WaitGroup
	for g := range int64(8) {
		wg.Go(func() {
			for n := range int64(200) {
				b.Update(Config{Backends: weighted(set(8*n+g), 1), Affinity: time.Duration(8*n+g+1) * time.Second})
			}
		})
	}
	wg.Wait()
	require.Zero(t, overlaps.Load())

	v := b.view.Load() // the last one, whole
	n := int64(v.backends[0].addr.Port()) - 1
	require.Equal(t, time.Duration(n+1)*time.Second, v.timeout)
	for i, addr := range set(n) {
		require.Equal(t, addr, v.backends[i].addr)
	}
}

// An Update in progress, however long, holds up no one else.
func TestPicksDoNotWaitForUpdates(t *testing.T) {
	b := sticky(time.Hour, 1, 2)
	b.updating.Lock()
	defer b.updating.Unlock()
	require.EqualValues(t, 1, pickFor(b, 1))
	b.Report(client(1), addr(1), 0, nil)
	b.Release(addr(1))
	require.Equal(t, 1, b.Pins())
	require.Len(t, b.Backends(), 2)
}
