package balancer

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// eject reports backend o refused as often as it takes.
func eject(b *Balancer, o byte) {
	for range 3 {
		b.Report(netip.Addr{}, addr(o), 0, errRefused)
	}
}

// ejected returns the last octets of those that are.
func ejected(b *Balancer) (list []byte) {
	for _, s := range b.Backends() {
		if !s.EjectedUntil.IsZero() {
			list = append(list, last(s.Addr))
		}
	}
	return list
}

func TestFailuresInARowEject(t *testing.T) {
	silences := []error{context.DeadlineExceeded, fmt.Errorf("dial: %w", os.ErrDeadlineExceeded), syscall.ETIMEDOUT, &net.OpError{Err: syscall.ETIMEDOUT}}
	refusals := []error{errRefused, syscall.ECONNREFUSED, syscall.EHOSTUNREACH}
	for _, tt := range []struct {
		errs []error
		want bool
	}{
		{refusals[:2], false},
		{refusals, true},
		{silences[:1], false},
		{silences[:2], true},
		{silences[2:], true},
		{[]error{silences[0], errRefused}, false},
		{[]error{errRefused, silences[1], errRefused}, true},
		{[]error{errRefused, errRefused, nil, errRefused, errRefused}, false}, // not in a row
		{[]error{errRefused, errRefused, errGivenUp, errRefused}, true},       // nothing changes
		{slices.Repeat([]error{errGivenUp}, 20), false},
	} {
		b := startingAt(0, 1, 2)
		for _, err := range tt.errs {
			b.Report(anyone, addr(1), 0, err)
		}
		require.Equal(t, tt.want, len(ejected(b)) > 0, "%v", tt.errs)
		require.Equal(t, tt.want, b.Counters().Ejections > 0)

		// The same after they were connected, which by itself is no success.
		b = startingAt(0, 1, 2)
		for _, err := range tt.errs {
			if b.Report(anyone, addr(1), 0, nil); err == errGivenUp {
				continue // still open
			}
			if err != nil {
				b.Fail(anyone, addr(1), err)
			}
			b.Release(addr(1))
		}
		require.Equal(t, tt.want, len(ejected(b)) > 0, "%v", tt.errs)
	}
}

// A connection that was reported and fails later is no dial: picks in flight stay counted.
func TestFailLeavesLoadsAlone(t *testing.T) {
	b := startingAt(0, 1)
	picks(b, 2)
	b.Report(anyone, addr(1), 0, nil)
	b.Fail(anyone, addr(1), errRefused)
	be := b.view.Load().backends[0]
	require.EqualValues(t, 2, be.load.read().total())
	require.EqualValues(t, 1, status(t, b, 1).Failed)
	b.Release(addr(1))
	b.Report(anyone, addr(1), 0, errRefused)
	require.Zero(t, be.load.read())
	b.Fail(anyone, addr(9), errRefused) // gone: ignored
}

// Failures of connections are forgiven with the pod, and with an ejection.
func TestLapsesEnd(t *testing.T) {
	fail := func(b *Balancer, n int) {
		for range n {
			b.Report(anyone, addr(1), 0, nil)
			b.Fail(anyone, addr(1), errRefused)
		}
	}
	b := startingAt(0, 1, 2)
	fail(b, 2)
	b.Update(Config{Backends: alike(2)})
	b.Update(Config{Backends: alike(1, 2)})
	fail(b, 2)
	require.Empty(t, ejected(b))
	fail(b, 1)
	require.Equal(t, []byte{1}, ejected(b))
	b.Update(Config{Backends: alike(1, 2), Probe: true})
	b.Report(anyone, addr(1), 0, nil)
	fail(b, 2)
	require.Empty(t, ejected(b))
}

// Where connecting says nothing, an ejection lasts for its time, whatever is reported, and not a connection longer.
func TestUDPBackendsReturnByTimeAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startingAt(0, 1, 2)
		eject(b, 1)
		b.Report(anyone, addr(1), 0, nil)
		be, _ := b.Pick(anyone, addrs(2))
		b.Report(anyone, be, 0, nil)
		require.Equal(t, []byte{1}, ejected(b))
		time.Sleep(800 * time.Millisecond)
		require.Contains(t, picks(b, 2), byte(1))
		b.Report(anyone, addr(1), 0, nil)
		require.Empty(t, ejected(b))
	})
}

func TestEveryoneIsKeptFromEjectedBackends(t *testing.T) {
	synctest.Test(t, testEveryoneIsKeptFromEjectedBackends)
}

func testEveryoneIsKeptFromEjectedBackends(t *testing.T) {
	for _, s := range schedulers {
		for _, affinity := range []time.Duration{0, time.Hour} {
			b := startingAt(0)
			b.Update(Config{Scheduler: s.name, Backends: alike(1, 2, 3, 4), Affinity: affinity})
			for c := range 100 {
				be, _ := b.PickFor(client(c), client(c), nil)
				b.Report(client(c), be, 0, nil)
			}
			eject(b, 2)
			eject(b, 3)
			b.Update(Config{Scheduler: s.name, Backends: alike(1, 2, 3, 4, 5), Affinity: affinity})
			require.Equal(t, []byte{2, 3}, ejected(b), "an update does not bring them back")
			for c := range 100 {
				be, _ := b.PickFor(client(c), client(c), nil)
				require.NotContains(t, addrs(2, 3), be, "%s", s.name)
			}
			var tried []netip.AddrPort
			for range 5 {
				be, ok := b.Pick(client(1), tried)
				require.True(t, ok)
				tried = append(tried, be)
			}
			require.ElementsMatch(t, addrs(2, 3), tried[3:], "%s: only when all others have been tried", s.name)
		}
	}
}

// What has left keeps its counts while it has connections, but there is nothing to keep clients from.
func TestBackendsThatLeftAreNotEjected(t *testing.T) {
	b := startingAt(0, 1, 2)
	b.Report(anyone, addr(1), 0, nil)
	b.Update(Config{Backends: alike(2)})
	eject(b, 1)
	require.Zero(t, b.Counters().Ejections)
}

func TestAnotherPodIsNotEjectedForTheLast(t *testing.T) {
	b := startingAt(0, 1, 2)
	eject(b, 1)
	b.Update(Config{Backends: alike(2)})
	b.Update(Config{Backends: alike(1, 2)})
	require.Empty(t, ejected(b))
	require.Zero(t, status(t, b, 1).Ejections)
}

// With all of them out, connections try each in turn, whichever has not been asked for the longest, and the first to answer
// is back. One that has not answered yet does not get all who come meanwhile.
func TestAllEjectedIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startingAt(0)
		b.Update(Config{Backends: alike(1, 2, 3), Probe: true})
		for _, o := range []byte{2, 3, 1} {
			eject(b, o)
		}
		for _, want := range []byte{2, 3, 1, 2} {
			be, ok := b.Pick(anyone, nil)
			require.True(t, ok)
			require.Equal(t, want, last(be))
			b.Report(anyone, be, 0, errRefused)
		}
		require.Equal(t, []byte{3, 1, 2, 3}, picks(b, 4))
		b.Report(anyone, addr(3), 0, nil)
		require.Equal(t, []byte{1, 2}, ejected(b))
		require.Equal(t, []byte{3, 3, 3}, picks(b, 3))
	})
}

func TestEjectionsGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, chance := range []int{0, 1 << 62} { // the least and the greatest jitter
			b := newBalancer(func(n int) int { return min(chance, n-1) }, maxPins, nil)
			b.Update(Config{Backends: alike(1, 2), Probe: true})
			eject(b, 1)
			for i, seconds := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
				length := time.Until(status(t, b, 1).EjectedUntil)
				want := seconds * time.Second * 4 / 5
				if chance > 0 {
					want = seconds*time.Second*6/5 - 1
				}
				require.Equal(t, want, length)
				require.Equal(t, i+1, status(t, b, 1).Ejections)
				time.Sleep(length - 1)
				require.Equal(t, []byte{2, 2, 2}, picks(b, 3), "not yet")
				time.Sleep(time.Nanosecond)
				require.ElementsMatch(t, []byte{1, 2, 2}, picks(b, 3), "one connection only tries")
				b.Report(anyone, addr(1), 0, errRefused)
			}
			b.Report(anyone, addr(1), 0, nil)
			require.Empty(t, ejected(b))
			time.Sleep(forgetAfter - 1)
			eject(b, 1)
			require.Equal(t, 10, status(t, b, 1).Ejections, "back for too short a time")
			b.Report(anyone, addr(1), 0, nil)
			time.Sleep(forgetAfter)
			eject(b, 1)
			require.Equal(t, 1, status(t, b, 1).Ejections)
			b.Report(anyone, addr(1), 0, nil)
			time.Sleep(forgetAfter)
			b.Report(anyone, addr(1), 0, nil)
			require.Zero(t, status(t, b, 1).Ejections)
		}
	})
}

// The connection that is the test may have been given up, or never be heard of again.
func TestAnUnfinishedTestIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startingAt(0, 1, 2)
		eject(b, 1)
		time.Sleep(time.Second)
		require.ElementsMatch(t, []byte{1, 2, 2}, picks(b, 3))
		b.Report(anyone, addr(1), 0, errGivenUp)
		require.ElementsMatch(t, []byte{1, 2, 2}, picks(b, 3))
		time.Sleep(testTime - 1)
		require.Equal(t, []byte{2, 2, 2}, picks(b, 3))
		time.Sleep(time.Nanosecond)
		require.ElementsMatch(t, []byte{1, 2, 2}, picks(b, 3))
	})
}

// Between looking at a backend and claiming it, it may be ejected, or somebody else may begin its test.
func TestAClaimThatComesTooLateIsUndone(t *testing.T) {
	synctest.Test(t, testAClaimThatComesTooLateIsUndone)
}

func testAClaimThatComesTooLateIsUndone(t *testing.T) {
	b := startingAt(0, 1, 2)
	v := b.view.Load()
	r := request{client: anyone, view: v, balancer: b}
	require.True(t, r.claim(v.backends[0]))
	eject(b, 1) // which abandons that one
	require.False(t, r.claim(v.backends[0]))
	require.Zero(t, v.backends[0].load.read())
}

// A late success of a dial begun before the ejection is as good a sign of life as any.
func TestAnySuccessBringsBack(t *testing.T) {
	b := startingAt(0)
	b.Update(Config{Backends: alike(1, 2), Probe: true})
	eject(b, 1)
	b.Report(anyone, addr(1), 0, nil)
	require.Empty(t, ejected(b))
	require.Zero(t, b.Counters().ProbesAnswered)
}

func TestPinsGiveWayToEjections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startingAt(0)
		b.Update(Config{Backends: alike(1, 2, 3), Affinity: time.Hour, Probe: true})
		require.Equal(t, []byte{1, 2, 3, 1}, pickEach(b, 4))
		eject(b, 1)
		require.Equal(t, []byte{2, 2, 3}, pickEach(b, 3))
		require.Equal(t, 4, b.Pins())
		b.Report(anyone, addr(1), 0, nil)
		require.Equal(t, []byte{2, 2, 3, 1}, pickEach(b, 4), "who moved stays; who did not connect meanwhile did not have to")
	})
}

// fair is a balancer whose chance is a number that goes round evenly.
func fair(c Config) *Balancer {
	calls := 0
	b := newBalancer(func(n int) int { calls++; return calls * 619 % n }, maxPins, nil)
	b.Update(c)
	return b
}

// A backend that is back gets a tenth of its share and then more and more of it, for ten seconds; what it does not take
// goes to all others alike.
func TestSlowStart(t *testing.T) {
	for _, s := range []Scheduler{RoundRobin, WeightedRoundRobin, Random, WeightedLeast, LeastConnection, ShortestDelay, NeverQueue, PowerOfTwo} {
		synctest.Test(t, func(t *testing.T) {
			b := fair(Config{Scheduler: s, Backends: alike(1, 2, 3, 4), Probe: true})
			eject(b, 1)
			b.Report(anyone, addr(1), 0, nil)
			b.Release(addr(1))
			for _, part := range []float64{0.1, 0.25, 0.5, 1} {
				const n = 24000
				before := shares(b)
				for range n {
					b.Pick(anyone, nil)
				}
				after := shares(b)
				got := make([]float64, 4)
				for i := range after {
					got[i] = float64(after[i] - before[i])
				}
				require.InDelta(t, n*part/(3+part), got[0], n*0.025, "%s, %v: %v", s, part, got)
				for i := 2; i < 4; i++ {
					require.InDelta(t, got[1], got[i], n*0.025, "%s, %v: %v", s, part, got)
				}
				for _, be := range b.view.Load().backends {
					be.load.word.Store(0)
				}
				time.Sleep(slowStart / 4)
				if part >= 0.5 {
					time.Sleep(slowStart / 4)
				}
			}
		})
	}
}

// Nobody is left to take what is given up.
func TestSlowStartOfAll(t *testing.T) { synctest.Test(t, testSlowStartOfAll) }

func testSlowStartOfAll(t *testing.T) {
	b := fair(Config{Backends: alike(1, 2), Probe: true})
	for _, o := range []byte{1, 2} {
		eject(b, o)
		b.Report(anyone, addr(o), 0, nil)
	}
	picks(b, 1000)
	for _, n := range shares(b) {
		require.InDelta(t, 500, n, 100)
	}
}
