package balancer

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// books is what the caller of a balancer knows: its own picks and connections.
type books struct {
	b      *Balancer
	config Config
	prober bool
	picks  []netip.AddrPort // not reported
	conns  []netip.AddrPort // not released
}

func (k *books) load(a netip.AddrPort) (n int) {
	for _, open := range append(slices.Clone(k.picks), k.conns...) {
		if open == a {
			n++
		}
	}
	return n
}

// check asserts that a pick with tried that gave got is as it must be, whatever the scheduler. It looks at the state from
// before the pick.
func (k *books) check(t *testing.T, before []BackendStatus, tried []netip.AddrPort, got netip.AddrPort, ok bool) {
	t.Helper()
	weight := slices.ContainsFunc(before, func(s BackendStatus) bool { return s.Weight > 0 })
	var usable, healthy, due []netip.AddrPort
	for _, s := range before {
		full := k.config.MaxPerBackend > 0 && k.load(s.Addr) >= k.config.MaxPerBackend
		if slices.Contains(tried, s.Addr) || weight && s.Weight == 0 || full {
			continue
		}
		usable = append(usable, s.Addr)
		if s.EjectedUntil.IsZero() {
			healthy = append(healthy, s.Addr)
		} else if !time.Now().Before(s.EjectedUntil) {
			due = append(due, s.Addr)
		}
	}
	require.Equal(t, len(usable) > 0, ok, "%+v: %+v, tried %v", k.config, before, tried)
	if !ok {
		return
	}
	require.Contains(t, usable, got)
	if len(healthy) > 0 && !slices.Contains(healthy, got) {
		require.False(t, k.prober && k.config.Probe, "%s: an ejected backend while %v are not", k.config.Scheduler, healthy)
		require.Contains(t, due, got)
	}
}

func TestPropertiesOfAllSchedulers(t *testing.T) {
	outcomes := []error{nil, nil, nil, errRefused, errSilent, errGivenUp}
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			k := &books{prober: seed%2 > 0}
			d := newDialer(addrs(1, 2)...)
			p := NewProber(d.dial)
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			if k.prober {
				running.Go(func() { p.Run(ctx) })
				synctest.Wait()
			}
			defer running.Wait()
			defer cancel()
			k.b = New(p)
			for range 300 {
				who := client(rng.IntN(6))
				switch op := rng.IntN(30); {
				case op == 0:
					list := weighted(addrs(1, 2, 3, 4, 5), rng.IntN(3), rng.IntN(3), rng.IntN(2), 1)
					rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
					k.config = Config{
						Backends: list[:rng.IntN(6)], Scheduler: schedulers[rng.IntN(len(schedulers))].name, Probe: k.prober,
						MaxPerBackend: rng.IntN(4), Affinity: time.Duration(rng.IntN(2)) * time.Minute,
					}
					k.b.Update(k.config)
				case op < 3:
					time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
					synctest.Wait()
				case op < 15:
					tried := addrs(1, 2, 3, 4, 5)[:max(0, rng.IntN(9)-4)]
					before := k.b.Backends()
					got, ok := k.b.PickFor(who, who, tried)
					k.check(t, before, tried, got, ok)
					if ok {
						k.picks = append(k.picks, got)
					} else if len(slices.DeleteFunc(before, func(s BackendStatus) bool { return slices.Contains(tried, s.Addr) })) == 0 {
						require.Nil(t, k.b.Freed(tried))
					} else if freed := k.b.Freed(tried); freed != nil { // nil: those left are quiesced
						require.False(t, ready(freed), "the pick would have found it")
					}
				case op < 23 && len(k.picks) > 0:
					i, err := rng.IntN(len(k.picks)), outcomes[rng.IntN(len(outcomes))]
					k.b.Report(who, k.picks[i], time.Millisecond, err)
					if err == nil {
						k.conns = append(k.conns, k.picks[i])
					}
					k.picks = slices.Delete(k.picks, i, i+1)
				case op < 24 && len(k.conns) > 0:
					k.b.Fail(who, k.conns[rng.IntN(len(k.conns))], errRefused)
				case len(k.conns) > 0:
					i := rng.IntN(len(k.conns))
					k.b.Release(k.conns[i])
					k.conns = slices.Delete(k.conns, i, i+1)
				}
				for _, be := range k.b.view.Load().backends {
					require.EqualValues(t, k.load(be.addr), be.load.read().total(), "seed %d: %v", seed, be.addr)
				}
			}
		})
	}
}

// Whatever goes on at the same time, nothing is charged to anybody in the end, and nobody has waited for ever.
func TestBooksBalanceAfterAStorm(t *testing.T) {
	outcomes := []error{nil, nil, errRefused, errSilent, errGivenUp}
	d := newDialer()
	p := NewProber(d.dial)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	b := New(p)
	b.Update(Config{Backends: alike(1, 2, 3, 4)})
	var stop atomic.Bool
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 2))
			for !stop.Load() {
				who := client(rng.IntN(50))
				be, ok := b.PickFor(who, who, addrs(1, 2, 3, 4)[:rng.IntN(3)])
				if !ok {
					b.Retry()
					b.Freed(nil)
					continue
				}
				err := outcomes[rng.IntN(len(outcomes))]
				b.Report(who, be, time.Duration(rng.IntN(1e6)), err)
				if err == nil {
					if rng.IntN(4) == 0 {
						b.Fail(who, be, errRefused)
					}
					b.HedgeDelay(be)
					b.Release(be)
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(9, 9))
	for range 3000 {
		list := weighted(addrs(1, 2, 3, 4), rng.IntN(3), 1, 2)
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		b.Update(Config{
			Backends: list[:rng.IntN(5)], Scheduler: schedulers[rng.IntN(len(schedulers))].name, Probe: rng.IntN(2) > 0,
			MaxPerBackend: rng.IntN(3), Affinity: time.Duration(rng.IntN(2)) * time.Minute,
		})
		b.Backends()
	}
	stop.Store(true)
	wg.Wait()
	cancel()
	running.Wait()
	v := b.view.Load()
	for _, be := range append(slices.Clone(v.backends), v.left...) {
		require.Zero(t, be.load.read(), be.addr)
	}
}
