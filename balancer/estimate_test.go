package balancer

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func connectTimesOf(b *Balancer, took time.Duration, times int) {
	for range times {
		b.Report(anyone, addr(1), took, nil)
	}
}

func TestHedgeDelay(t *testing.T) {
	b := startingAt(0, 1, 2)
	require.Equal(t, maxHedge, b.HedgeDelay(addr(1)), "nothing is known")
	require.Equal(t, maxHedge, b.HedgeDelay(addr(9)), "no backend")
	for _, want := range []time.Duration{125, 62500, 31250, 15625} { // halved by each sample
		connectTimesOf(b, 200*time.Microsecond, 1)
		if want > 1000 {
			want /= 1000
		}
		require.Equal(t, want, b.HedgeDelay(addr(1)).Truncate(time.Millisecond)/time.Millisecond)
	}
	connectTimesOf(b, 200*time.Microsecond, 300)
	require.Equal(t, minHedge, b.HedgeDelay(addr(1)), "never below")
	require.Equal(t, minHedge, b.HedgeDelay(addr(2)), "what does for the one should do for the other")

	connectTimesOf(b, 40*time.Millisecond, 300)
	require.InDelta(t, 40*time.Millisecond, b.HedgeDelay(addr(1)), float64(time.Millisecond), "no deviation")
	for range 300 {
		b.Report(anyone, addr(2), 200*time.Microsecond, nil)
	}
	require.Equal(t, minHedge, b.HedgeDelay(addr(2)), "each has its own")
	require.InDelta(t, 40*time.Millisecond, b.HedgeDelay(addr(1)), float64(time.Millisecond), "each has its own")
	connectTimesOf(b, 20*time.Second, 300)
	require.Equal(t, maxHedge, b.HedgeDelay(addr(1)), "never above")
	require.Equal(t, maxHedge, status(t, b, 1).HedgeDelay)
	b.Report(anyone, addr(1), 0, nil)
	b.Report(anyone, addr(1), -time.Second, nil)
	require.Equal(t, maxHedge, b.HedgeDelay(addr(1)), "unknown times count for nothing")
	connectTimesOf(b, 200*time.Microsecond, 300)
	require.Equal(t, minHedge, b.HedgeDelay(addr(1)), "and it comes down again")
	b.Report(anyone, addr(1), 20*time.Millisecond, errRefused)
	require.Equal(t, minHedge, b.HedgeDelay(addr(1)), "refusals are no connect times")
}

// A dial is late only now and then. Whatever the distribution, what lies above the mean is half of the mean deviation on
// average, so less than an eighth of all can lie four deviations above.
func TestFewDialsAreLate(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, draw := range map[string]func() float64{
		"even":        func() float64 { return 20 + 20*rng.Float64() },
		"exponential": func() float64 { return 15 + 10*rng.ExpFloat64() },
		"normal":      func() float64 { return max(1, 50+10*rng.NormFloat64()) },
	} {
		b := startingAt(0, 1)
		late, below := 0, 0
		for range 20000 {
			took := time.Duration(draw() * float64(time.Millisecond))
			if took > b.HedgeDelay(addr(1)) {
				late++
			}
			if b.HedgeDelay(addr(1)) < maxHedge {
				below++
			}
			b.Report(anyone, addr(1), took, nil)
		}
		require.Less(t, late, 20000/8, name)
		require.Greater(t, below, 20000*9/10, "%s: it is learnt", name)
	}
}

// A backend that is slower than it was loses every race against the second dial. It must not be hedged for ever.
func TestLostRacesAreLearntFrom(t *testing.T) {
	b := startingAt(0, 1)
	connectTimesOf(b, 30*time.Millisecond, 200)
	before := b.HedgeDelay(addr(1))
	b.Report(anyone, addr(1), time.Millisecond, errGivenUp)
	require.Equal(t, before, b.HedgeDelay(addr(1)), "a client that left at once says nothing")
	connectTimesOf(b, time.Millisecond, 200)
	for range 50 {
		b.Report(anyone, addr(1), b.HedgeDelay(addr(1))+5*time.Millisecond, errGivenUp)
	}
	require.Greater(t, b.HedgeDelay(addr(1)), 50*time.Millisecond)

	b = startingAt(0, 1)
	connectTimesOf(b, time.Millisecond, 200)
	for range 5 {
		b.Report(anyone, addr(1), 250*time.Millisecond, errSilent)
		require.Equal(t, minHedge, b.HedgeDelay(addr(1)), "the next client does not wait for longer")
	}
	b = startingAt(0, 1)
	b.Report(anyone, addr(1), time.Millisecond, errGivenUp)
	require.Equal(t, maxHedge, b.HedgeDelay(addr(1)), "no time of an answer is known yet")
}

func TestEstimateIsOneWord(t *testing.T) {
	var e estimate
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				e.add(30 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	_, got := e.load()
	require.Equal(t, int64(255), got.samples)
	require.InDelta(t, 30*time.Millisecond, time.Duration(got.mean)*tick, float64(tick), "no update was torn")
	require.Less(t, time.Duration(got.deviation)*tick, time.Millisecond)
}
