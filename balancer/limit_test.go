package balancer

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func limited(limit int, affinity time.Duration, s Scheduler, octets ...byte) *Balancer {
	b := startingAt(0)
	b.Update(Config{Backends: alike(octets...), Scheduler: s, MaxPerBackend: limit, Affinity: affinity})
	return b
}

func ready(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// However many pick at once, with every scheduler, no backend has more than its limit, and all slots are used.
func TestLimitsAreExact(t *testing.T) {
	for _, s := range schedulers {
		b := limited(25, 0, s.name, 1, 2, 3, 4)
		var wg sync.WaitGroup
		var got, full atomic.Int64
		for range 8 {
			wg.Go(func() {
				for c := range 25 {
					if _, ok := b.Pick(client(c), nil); ok {
						got.Add(1)
					} else {
						full.Add(1)
					}
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 100, got.Load(), s.name)
		require.EqualValues(t, 100, b.Counters().Full, s.name)
		require.Equal(t, []int{25, 25, 25, 25}, shares(b), s.name)
	}
}

func TestFullAndNoBackendAreToldApart(t *testing.T) {
	b := limited(1, 0, "", 1, 2)
	be, _ := b.Pick(anyone, nil)
	require.True(t, ready(b.Freed(nil)), "one is free")
	b.Pick(anyone, nil)
	_, ok := b.Pick(anyone, nil)
	require.False(t, ok)
	require.EqualValues(t, 1, b.Counters().Full)
	freed := b.Freed(nil)
	require.NotNil(t, freed)
	require.False(t, ready(freed))
	require.Nil(t, b.Freed(addrs(1, 2)), "all tried: waiting is no use")
	_, ok = b.Pick(anyone, addrs(1, 2))
	require.False(t, ok)
	require.EqualValues(t, 1, b.Counters().Full)
	b.Report(anyone, be, 0, nil)
	require.False(t, ready(freed), "the pick has become a connection")
	b.Release(be)
	require.True(t, ready(freed))
	again, ok := b.Pick(anyone, nil)
	require.True(t, ok)
	require.Equal(t, be, again)

	require.Nil(t, startingAt(0).Freed(nil), "no backend at all")
	require.True(t, ready(startingAt(0, 1).Freed(nil)), "no limit")
}

func TestWhatFreesASlot(t *testing.T) {
	for name, free := range map[string]func(b *Balancer){
		"a failed dial":        func(b *Balancer) { b.Report(anyone, addr(1), 0, errRefused) },
		"a dial given up":      func(b *Balancer) { b.Report(anyone, addr(1), 0, errGivenUp) },
		"a connection's end":   func(b *Balancer) { b.Report(anyone, addr(1), 0, nil); b.Release(addr(1)) },
		"another backend":      func(b *Balancer) { b.Update(Config{Backends: alike(1, 2), MaxPerBackend: 1}) },
		"a higher limit":       func(b *Balancer) { b.Update(Config{Backends: alike(1), MaxPerBackend: 2}) },
		"no limit":             func(b *Balancer) { b.Update(Config{Backends: alike(1)}) },
		"the last one's leave": func(b *Balancer) { b.Update(Config{MaxPerBackend: 1}) }, // to be told that there is none
	} {
		t.Run(name, func(t *testing.T) {
			b := limited(1, 0, "", 1)
			b.Pick(anyone, nil)
			freed := b.Freed(nil)
			require.False(t, ready(freed))
			free(b)
			require.True(t, ready(freed))
		})
	}
}

// A thousand connections for three slots: none is forgotten. The bubble fails if anyone waits for ever.
func TestNobodyWaitsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := limited(1, 0, "", 1, 2, 3)
		var served, inside, most atomic.Int64
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				for {
					be, ok := b.Pick(anyone, nil)
					if !ok {
						<-b.Freed(nil)
						continue
					}
					n := inside.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					b.Report(anyone, be, 0, nil)
					inside.Add(-1)
					b.Release(be)
					served.Add(1)
					return
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1000, served.Load())
		require.LessOrEqual(t, most.Load(), int64(3))
	})
}

// A client whose backend is full goes elsewhere this time; its pin stays.
func TestPinsToFullBackendsStay(t *testing.T) {
	b := limited(1, time.Hour, "", 1, 2)
	require.EqualValues(t, 1, pickFor(b, 1))
	require.EqualValues(t, 2, pickFor(b, 1))
	b.Report(client(1), addr(2), 0, nil)
	_, ok := b.Pick(client(1), nil)
	require.False(t, ok)
	b.Report(client(1), addr(1), 0, nil)
	b.Release(addr(1))
	b.Release(addr(2))
	require.EqualValues(t, 1, pickFor(b, 1))
}

// A backend that returns with connections from before has room for the rest only.
func TestLimitsCountOldConnections(t *testing.T) {
	b := limited(2, 0, "", 1)
	b.Pick(anyone, nil)
	b.Report(anyone, addr(1), 0, nil)
	b.Pick(anyone, nil) // not reported yet
	b.Update(Config{MaxPerBackend: 2})
	b.Update(Config{Backends: alike(1), MaxPerBackend: 2})
	_, ok := b.Pick(anyone, nil)
	require.False(t, ok)
	b.Report(anyone, addr(1), 0, nil)
	b.Release(addr(1))
	_, ok = b.Pick(anyone, nil)
	require.True(t, ok)
}

// Retries are free as long as one backend is not ejected; then they are a fifth of the connections, or ten a second.
func TestRetriesAreBudgetedOnlyWhenAllAreOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startingAt(0)
		b.Update(Config{Backends: alike(1, 2), Probe: true})
		eject(b, 1)
		for range 10000 {
			require.True(t, b.Retry())
		}
		b.Report(anyone, addr(2), 0, errRefused)
		require.True(t, b.Retry(), "a failure, but no ejection")
		eject(b, 2)
		allowed := func() (n int) {
			for b.Retry() {
				n++
			}
			return n
		}
		connect := func() {
			be, ok := b.Pick(anyone, nil)
			require.True(t, ok, "the first dial is never refused")
			b.Report(anyone, be, 0, errRefused)
		}
		require.Zero(t, allowed())
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, 5, allowed())
		for range 50 { // no part of the time is lost, nor counted twice
			time.Sleep(30 * time.Millisecond)
			require.Zero(t, allowed())
			time.Sleep(70 * time.Millisecond)
			require.Equal(t, 1, allowed())
		}
		time.Sleep(time.Hour)
		require.Equal(t, 10, allowed(), "not saved up")
		connect()
		connect() // those are the tests that were due
		retries := 0
		for range 1000 {
			connect()
			retries += allowed()
		}
		require.Equal(t, 200, retries)
		retries = 0
		for range 1000 {
			connect()
			b.Pick(anyone, []netip.AddrPort{addr(1)}) // a retry earns nothing
			b.Report(anyone, addr(2), 0, errRefused)
			retries += allowed()
		}
		require.Equal(t, 200, retries)
		b.Report(anyone, addr(1), 0, nil)
		require.True(t, b.Retry())
	})
}

// A claim that is undone, as its backend was ejected meanwhile, has filled the backend for a moment.
func TestAnUndoneClaimFreesASlot(t *testing.T) {
	b := limited(1, 0, "", 1)
	v := b.view.Load()
	r := request{client: anyone, view: v, balancer: b}
	require.True(t, v.backends[0].load.reserve(1))
	freed := b.Freed(nil)
	require.False(t, ready(freed))
	eject(b, 1) // which abandons that one
	require.True(t, v.backends[0].load.reserve(1))
	freed = b.Freed(nil)
	require.False(t, ready(freed))
	require.False(t, r.begin(v.backends[0]))
	require.True(t, ready(freed))
}
