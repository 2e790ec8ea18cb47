package balancer

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// dialer answers probes as told and counts them.
type dialer struct {
	mu      sync.Mutex
	dials   map[netip.AddrPort]int
	dead    map[netip.AddrPort]bool
	silent  bool // dials last until they are given up
	flying  int
	highest int // of flying
}

func newDialer(dead ...netip.AddrPort) *dialer {
	d := &dialer{dials: map[netip.AddrPort]int{}, dead: map[netip.AddrPort]bool{}}
	for _, a := range dead {
		d.dead[a] = true
	}
	return d
}

func (d *dialer) dial(ctx context.Context, a netip.AddrPort) error {
	d.mu.Lock()
	d.dials[a]++
	d.flying++
	d.highest = max(d.highest, d.flying)
	dead, silent := d.dead[a], d.silent
	d.mu.Unlock()
	if silent {
		<-ctx.Done()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flying--
	if silent {
		return ctx.Err()
	}
	if dead {
		return errRefused
	}
	return nil
}

func (d *dialer) revive(a netip.AddrPort) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead[a] = false
}

func (d *dialer) count(a netip.AddrPort) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dials[a]
}

// probing runs a prober in a bubble until the test ends, over balancers that begin with the least jitter.
func probing(t *testing.T, d *dialer) (*Prober, func(Config) *Balancer) {
	p := NewProber(d.dial)
	t.Cleanup(runProber(t, p))
	return p, func(c Config) *Balancer {
		b := newBalancer(func(int) int { return 0 }, maxPins, p)
		b.Update(c)
		return b
	}
}

func runProber(t *testing.T, p *Prober) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		require.NoError(t, <-done)
	}
}

// No client's connection goes to a backend that is out, however long it is.
func TestProbesBringBackendsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialer(addr(1))
		p, balance := probing(t, d)
		b := balance(Config{Backends: alike(1, 2), Probe: true})
		eject(b, 1)
		began := time.Now()
		for i, at := range []time.Duration{800, 2400, 5600, 12000} { // 0.8 of 1, 2, 4 and 8 s
			time.Sleep(time.Until(began.Add(at*time.Millisecond)) - 1)
			synctest.Wait()
			require.Equal(t, i, d.count(addr(1)))
			require.Equal(t, []byte{2, 2, 2}, picks(b, 3))
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			require.Equal(t, i+1, d.count(addr(1)))
			require.Equal(t, []byte{2, 2, 2}, picks(b, 3))
		}
		require.Equal(t, Counters{Ejections: 5, ProbesFailed: 4}, b.Counters())
		d.revive(addr(1))
		time.Sleep(20 * time.Second)
		require.Empty(t, ejected(b))
		require.Equal(t, 5, d.count(addr(1)))
		require.Equal(t, Counters{Ejections: 5, ProbesFailed: 4, ProbesAnswered: 1}, b.Counters())
		time.Sleep(time.Hour)
		require.Equal(t, 5, d.count(addr(1)), "and then it is left alone")
		require.Contains(t, picks(b, 2), byte(1))
		p.mu.Lock()
		require.Empty(t, p.probes)
		require.Empty(t, p.waiting)
		p.mu.Unlock()
		require.Error(t, p.Run(context.Background()), "twice")
	})
}

// A test that comes to an address already waiting for a later one is not held up by it, nor by those in between.
func TestAnEarlierTestComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialer(addrs(1, 2, 3)...)
		_, balance := probing(t, d)
		c := Config{Backends: alike(1, 2, 3, 4), Probe: true}
		old, young := balance(c), balance(c)
		for _, o := range []byte{3, 2, 1} {
			eject(old, o)
		}
		time.Sleep(20 * time.Second) // all wait for seconds by now
		synctest.Wait()
		before := d.count(addr(1))
		eject(young, 1)
		time.Sleep(800 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, before+1, d.count(addr(1)))
	})
}

// While the probe is under way, and while it waits for a free slot, its result is not anticipated.
func TestConnectionsWaitForTheProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialer()
		d.silent = true
		_, balance := probing(t, d)
		b := balance(Config{Backends: alike(1, 2), Probe: true})
		eject(b, 1)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, 1, d.count(addr(1)))
		require.True(t, status(t, b, 1).EjectedUntil.Before(time.Now()))
		require.Equal(t, []byte{2, 2, 2}, picks(b, 3))
	})
}

// Who ejects later hears of it as well, if the answer is good; if not, its own test is yet to come.
func TestOneProbePerAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialer(addr(1))
		_, balance := probing(t, d)
		c := Config{Backends: alike(1, 2), Probe: true}
		early, late, third := balance(c), balance(c), balance(c)
		eject(early, 1)
		eject(third, 1)
		time.Sleep(500 * time.Millisecond)
		eject(late, 1)
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, 1, d.count(addr(1)))
		require.EqualValues(t, 1, early.Counters().ProbesFailed)
		require.EqualValues(t, 1, third.Counters().ProbesFailed)
		require.Zero(t, late.Counters().ProbesFailed)
		d.revive(addr(1))
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, 2, d.count(addr(1)))
		for _, b := range []*Balancer{early, late, third} {
			require.Empty(t, ejected(b))
		}
		time.Sleep(time.Hour)
		require.Equal(t, 2, d.count(addr(1)))
	})
}

func TestProbesEndWithWhatTheyAreAbout(t *testing.T) {
	for name, end := range map[string]func(b *Balancer){
		"backend leaves":         func(b *Balancer) { b.Update(Config{Backends: alike(2), Probe: true}) },
		"backend returns anew":   func(b *Balancer) { b.Update(Config{Probe: true}); b.Update(Config{Backends: alike(1, 2), Probe: true}) },
		"closed":                 (*Balancer).Close,
		"probing switched off":   func(b *Balancer) { b.Update(Config{Backends: alike(1, 2)}) },
		"a connection succeeded": func(b *Balancer) { b.Report(anyone, addr(1), 0, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDialer(addr(1))
				p, balance := probing(t, d)
				b := balance(Config{Backends: alike(1, 2), Probe: true})
				eject(b, 1)
				end(b)
				time.Sleep(time.Hour)
				require.Zero(t, d.count(addr(1)))
				p.mu.Lock()
				defer p.mu.Unlock()
				require.Empty(t, p.probes, "nothing is kept in memory")
				require.Empty(t, p.waiting)
			})
		})
	}
}

// Without a prober that runs, or for a backend that none can probe, a connection is the test: it never stays out for ever.
func TestConnectionsTestWhatNoProbeDoes(t *testing.T) {
	idle := NewProber(nil)
	for name, b := range map[string]*Balancer{
		"no prober":             New(nil),
		"it does not run":       New(idle),
		"Probe is false":        New(idle),
		"switched off and on":   New(idle),
		"closed after ejection": New(idle),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b.born = time.Now()
				if name != "it does not run" {
					b.prober.running.Store(true)
					defer b.prober.running.Store(false)
				}
				c := Config{Backends: alike(1, 2), Probe: name != "Probe is false"}
				b.Update(c)
				eject(b, 1)
				be := b.view.Load().backends[0]
				switch e := be.ejection.Load(); name {
				case "switched off and on":
					b.Update(Config{Backends: alike(1, 2)})
					require.False(t, b.awaits(be, e))
					b.Update(c)
				case "closed after ejection":
					b.Close()
				}
				require.Equal(t, []byte{2, 2, 2}, picks(b, 3))
				time.Sleep(2 * time.Second)
				require.ElementsMatch(t, []byte{1, 2, 2}, picks(b, 3))
			})
		})
	}
}

// The end of the Prober says nothing about backends, and what it has not come to is there when it runs again.
func TestProberStopsAndRunsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialer()
		d.silent = true
		p := NewProber(d.dial)
		b := newBalancer(func(int) int { return 0 }, maxPins, p)
		b.Update(Config{Backends: alike(1, 2, 3), Probe: true})
		eject(b, 1)
		run := func(for_ time.Duration) {
			ctx, cancel := context.WithTimeout(context.Background(), for_)
			defer cancel()
			require.NoError(t, p.Run(ctx))
		}
		run(time.Second) // ends in the middle of the dial
		require.Equal(t, 1, d.count(addr(1)))
		require.Zero(t, d.flying)
		require.EqualValues(t, 1, b.Counters().Ejections)
		require.Zero(t, b.Counters().ProbesFailed)
		d.silent = false
		run(time.Second)
		require.Empty(t, ejected(b))
	})
}

func TestSilentProbesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialer()
		d.silent = true
		_, balance := probing(t, d)
		const n = 3 * maxProbes
		all := weighted(benchmarkSet(n), 1)
		b := balance(Config{Backends: all, Probe: true})
		for _, be := range all {
			for range 2 {
				b.Report(anyone, be.Addr, 0, context.DeadlineExceeded)
			}
		}
		time.Sleep(800*time.Millisecond + 3*probeTimeout)
		synctest.Wait()
		require.EqualValues(t, n, b.Counters().ProbesFailed)
		require.Equal(t, maxProbes, d.highest)
	})
}
