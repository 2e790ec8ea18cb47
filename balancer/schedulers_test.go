package balancer

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scheduled returns a balancer of backends 1, 2, ... with those weights.
func scheduled(s Scheduler, weights ...int) *Balancer {
	b := newBalancer(func(n int) int { return 0 }, maxPins, nil)
	b.Update(Config{Scheduler: s, Backends: numbered(weights...)})
	return b
}

// numbered returns backends 1, 2, ... with those weights.
func numbered(weights ...int) []Backend {
	list := weighted(benchmarkSet(len(weights) + 1)[1:], 1)
	for i, w := range weights {
		list[i].Weight = w
	}
	return list
}

func uniform(n, weight int) []int { return slices.Repeat([]int{weight}, n) }

// shares counts picks per backend, in order of address.
func shares(b *Balancer) (counts []int) {
	for _, s := range b.Backends() {
		counts = append(counts, int(s.Picked))
	}
	return counts
}

// pickAll picks n times, for as many clients, on several goroutines, and returns the counts of these picks.
func pickAll(b *Balancer, n int) []int {
	before := shares(b)
	var wg sync.WaitGroup
	const pickers = 4
	for g := range pickers {
		wg.Go(func() {
			for i := range n / pickers {
				b.Pick(hostOf(i*pickers+g), nil)
			}
		})
	}
	wg.Wait()
	after := shares(b)
	for i := range after {
		after[i] -= before[i]
	}
	return after
}

func hostOf(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18 + byte(n>>16&1), byte(n >> 8), byte(n)})
}

func TestParseScheduler(t *testing.T) {
	for _, s := range schedulers {
		got, err := ParseScheduler(string(s.name))
		require.NoError(t, err)
		require.Equal(t, s.name, got)
	}
	got, err := ParseScheduler("")
	require.NoError(t, err)
	require.Equal(t, RoundRobin, got)
	_, err = ParseScheduler("wlcc")
	require.EqualError(t, err, `unknown scheduler "wlcc": choose one of rr, wrr, lc, wlc, sed, nq, random, p2c, sh, dh, mh`)
}

func FuzzParseScheduler(f *testing.F) {
	for _, name := range []string{"", "rr", "RR", " wrr", "mh\x00"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		s, err := ParseScheduler(name)
		if err == nil {
			require.True(t, string(s) == name || name == "" && s == RoundRobin)
			again, err := ParseScheduler(string(s))
			require.NoError(t, err)
			require.Equal(t, s, again)
		} else {
			require.Empty(t, s)
		}
	})
}

func TestUnknownSchedulerIsRoundRobin(t *testing.T) {
	b := startingAt(0)
	b.Update(Config{Scheduler: "wlcc", Backends: alike(1, 2, 3)})
	require.Equal(t, []byte{1, 2, 3, 1}, picks(b, 4))
}

// What holds for every scheduler, with and without weights.
func TestAnyScheduler(t *testing.T) {
	for _, s := range schedulers {
		for _, weights := range [][]int{{1}, {1, 1, 1, 1}, {3, 1, 0, 2}, {0, 0, 0}, uniform(40, 7)} {
			t.Run(fmt.Sprint(s.name, len(weights), weights[0]), func(t *testing.T) {
				b := scheduled(s.name, weights...)
				all := b.Backends()
				quiesced := func(a netip.AddrPort) bool {
					return weights[slices.IndexFunc(all, func(s BackendStatus) bool { return s.Addr == a })] == 0 && slices.Max(weights) > 0
				}
				usable := 0
				for _, be := range all {
					if !quiesced(be.Addr) {
						usable++
					}
				}
				for c := range 50 {
					var tried []netip.AddrPort
					for range usable {
						be, ok := b.PickFor(hostOf(c), hostOf(c), tried)
						require.True(t, ok)
						require.NotContains(t, tried, be)
						require.False(t, quiesced(be), "%v is quiesced", be)
						tried = append(tried, be)
					}
					_, ok := b.PickFor(hostOf(c), hostOf(c), tried)
					require.False(t, ok, "all have been tried")
					_, ok = b.PickFor(netip.Addr{}, netip.Addr{}, nil)
					require.True(t, ok, "nothing is known of the client")
				}
				tried := []netip.AddrPort{all[0].Addr}
				b.Report(anyone, all[0].Addr, 0, nil)
				require.Zero(t, testing.AllocsPerRun(100, func() {
					be, _ := b.PickFor(anyone, anyone, nil)
					b.Report(anyone, be, time.Millisecond, nil)
					b.Release(be)
					if be, ok := b.Pick(anyone, tried); ok {
						b.Report(anyone, be, time.Millisecond, nil)
						b.Release(be)
					}
				}))

				b.Update(Config{Scheduler: s.name})
				_, ok := b.Pick(anyone, nil)
				require.False(t, ok)
				b.Update(Config{Scheduler: s.name, Backends: numbered(1, 1)})
				_, ok = b.Pick(anyone, nil)
				require.True(t, ok)
			})
		}
	}
}

// Changing the scheduler or a weight neither loses counts nor pins, nor opens anything twice.
func TestSchedulersChangeLive(t *testing.T) {
	b := startingAt(0)
	var before, after BackendStatus
	for i, s := range append(schedulers, schedulers...) {
		b.Update(Config{Scheduler: s.name, Backends: numbered(1+i, 1, 2), Affinity: time.Hour})
		be, _ := b.Pick(anyone, nil)
		if i == 0 {
			before.Addr = be
		}
		require.Equal(t, before.Addr, be, "%s breaks the pin", s.name)
		b.Report(anyone, be, 0, nil)
		for _, st := range b.Backends() {
			if st.Addr == be {
				after = st
			}
		}
		require.EqualValues(t, i+1, after.Active, s.name)
		require.EqualValues(t, i+1, after.Picked, s.name)
		require.Equal(t, s.name == DestinationHash, b.WantsDestination())
	}
}

func TestOnlyTheSchedulerChanges(t *testing.T) {
	b := startingAt(0, 1, 2, 3)
	require.Equal(t, []byte{1, 2, 3, 1}, picks(b, 4))
	b.Update(Config{Backends: alike(1, 2, 3), Scheduler: SourceHash})
	require.Len(t, slices.Compact(picks(b, 4)), 1)
	b.Update(Config{Backends: alike(1, 2, 3)})
	require.Equal(t, []byte{1, 2, 3, 1}, picks(b, 4))
}

func TestWeightsAreBounded(t *testing.T) {
	b := scheduled(WeightedRoundRobin, -3, math.MaxInt, 5)
	var got []int
	for _, s := range b.Backends() {
		got = append(got, s.Weight)
	}
	require.Equal(t, []int{0, 65535, 5}, got)
}

// Quiescing a backend moves the clients that are pinned to it, and no others.
func TestQuiescedBackendsLoseTheirPins(t *testing.T) {
	b := sticky(time.Hour, 1, 2)
	require.Equal(t, []byte{1, 2}, pickEach(b, 2))
	b.Update(Config{Backends: weighted(addrs(1, 2), 0, 1), Affinity: time.Hour})
	require.Equal(t, []byte{2, 2}, pickEach(b, 2))
	b.Update(Config{Backends: alike(1, 2), Affinity: time.Hour})
	require.Equal(t, []byte{2, 2}, pickEach(b, 2), "re-pinned")
	b.Update(Config{Backends: weighted(addrs(1, 2), 0), Affinity: time.Hour})
	require.Equal(t, []byte{2, 2}, pickEach(b, 2), "all are quiesced: none is")
}

func TestWeightedRoundRobinIsExact(t *testing.T) {
	for _, weights := range [][]int{{1}, {5, 1, 1}, {1, 2, 3, 4}, {100, 50}, {65535, 1, 7}, {7, 0, 3}, uniform(9, 4), uniform(1000, 3), {20, 20, 1, 1, 1, 1, 1, 1}} {
		t.Run(fmt.Sprint(len(weights), weights[0]), func(t *testing.T) {
			divisor, sum := 0, 0
			for _, w := range weights {
				divisor, sum = int(gcd(uint64(divisor), uint64(w))), sum+w
			}
			period := sum / divisor
			b := scheduled(WeightedRoundRobin, weights...)
			b.Pick(anyone, nil) // a period may begin anywhere
			const pickers = 4
			for i, got := range pickAll(b, pickers*period) {
				require.Equal(t, pickers*weights[i]/divisor, got, i)
			}
		})
	}
}

// At any time within a period a backend has had its part of the turns so far, give or take a few: log2 of the period is
// what the theory of such sequences allows (Niederreiter, theorem 3.4), and far more than is seen.
func TestWeightedRoundRobinInterleaves(t *testing.T) {
	for _, weights := range [][]int{{5, 1, 1}, {10, 1, 1, 1}, {50, 50}, {90, 10}, {500, 300, 199}, {1000, 1}, {13, 11, 7, 5, 3, 2}, {4096, 1024, 256, 64}} {
		b := scheduled(WeightedRoundRobin, weights...)
		sum := 0
		for _, w := range weights {
			sum += w
		}
		counts := make([]int, len(weights))
		worst := 0.0
		for n := 1; n <= 2*sum; n++ {
			be, _ := b.Pick(anyone, nil)
			counts[last(be)-1]++
			for i, w := range weights {
				worst = max(worst, math.Abs(float64(counts[i])-float64(n*w)/float64(sum)))
			}
		}
		assert.LessOrEqual(t, worst, 2.0, "%v", weights)
	}
}

// A dead backend's turns go to the others by weight.
func TestWeightedRoundRobinPassesOver(t *testing.T) {
	b := scheduled(WeightedRoundRobin, 6, 3, 1)
	dead := []netip.AddrPort{b.Backends()[0].Addr}
	for range 4000 {
		b.Pick(anyone, dead)
	}
	require.Equal(t, []int{0, 3000, 1000}, shares(b))
}

// Nor does it take long when nearly all turns are a dead backend's, or nearly all backends are dead.
func TestDrawsAreNotRepeatedForEver(t *testing.T) {
	for _, s := range []Scheduler{WeightedRoundRobin, Random, PowerOfTwo} {
		b := scheduled(s, 65535, 65535, 3, 1)
		dead := []netip.AddrPort{b.Backends()[0].Addr, b.Backends()[1].Addr}
		const n = 4000
		for range n {
			be, ok := b.Pick(anyone, dead)
			require.True(t, ok)
			b.Report(anyone, be, 0, errGivenUp)
		}
		within(t, n, 0.75, shares(b)[2], s)
	}
	b := scheduled(Maglev, 65535, 1, 1) // the light ones have no slot
	dead := []netip.AddrPort{b.Backends()[0].Addr}
	for range 1000 {
		b.Pick(anyone, dead)
	}
	within(t, 1000, 0.5, shares(b)[1])
}

// within asserts that a count out of n draws is what probability p makes likely: within five standard deviations, which
// one of a million fair runs misses.
func within(t *testing.T, n int, p float64, got int, msg ...any) {
	t.Helper()
	mean, deviation := float64(n)*p, math.Sqrt(float64(n)*p*(1-p))
	assert.InDelta(t, mean, got, 5*deviation, msg...)
}

func TestRandomFollowsWeights(t *testing.T) {
	b := scheduled(Random, 5, 0, 3, 2)
	const n = 40000
	got := pickAll(b, n)
	for i, p := range []float64{0.5, 0, 0.3, 0.2} {
		within(t, n, p, got[i], i)
	}
	tried := []netip.AddrPort{b.Backends()[0].Addr}
	before := shares(b)
	for range n {
		b.Pick(anyone, tried)
	}
	within(t, n, 0.6, shares(b)[2]-before[2], "of the rest")
}

// The promise of two choices over one: with n connections on n backends, the fullest has about log2(log2(n)) of them. One
// choice gives the fullest of 1,000 some five to seven.
func TestPowerOfTwoKeepsLoadsLevel(t *testing.T) {
	b := scheduled(PowerOfTwo, uniform(1000, 1)...)
	got := pickAll(b, 20000)
	require.LessOrEqual(t, slices.Max(got), 20+5)
	require.GreaterOrEqual(t, slices.Min(got), 20-8)

	b = scheduled(PowerOfTwo, 6, 3, 1)
	got = pickAll(b, 10000)
	for i, want := range []int{6000, 3000, 1000} {
		require.InDelta(t, want, got[i], 300, "loads by weight: %v", got)
	}
}

// A burst is level before any of it is reported, exactly: no two backends differ by more than one.
func TestLeastSchedulersSpreadABurst(t *testing.T) {
	for _, s := range []Scheduler{LeastConnection, WeightedLeast, ShortestDelay, NeverQueue} {
		b := scheduled(s, uniform(7, 1)...)
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() { b.Pick(anyone, nil) })
		}
		wg.Wait()
		got := shares(b)
		require.LessOrEqual(t, slices.Max(got)-slices.Min(got), 1, "%s: %v", s, got)
	}
}

// A choice that is out of date by the time of the claim is made again: here two connections come to the one chosen while
// the next is looked at.
func TestLeastSchedulersChooseByTheLoadOfTheMoment(t *testing.T) {
	b := startingAt(0, 1, 2)
	v := b.view.Load()
	meanwhile := 2
	l := newLeast(v.backends, func(int) int { return 0 }, func(a, b candidate) bool {
		for ; meanwhile > 0; meanwhile-- {
			v.backends[0].load.reserve(0)
		}
		return lighter(a, b, 0)
	})
	require.Equal(t, v.backends[1], l.next(request{client: anyone, view: v, balancer: b}))
}

// Each definition, by the loads it must lead to and the choices it must make.
func TestLeastSchedulersByDefinition(t *testing.T) {
	for _, tt := range []struct {
		scheduler Scheduler
		weights   []int
		loads     []int // before
		picks     int
		want      []int // loads after; nil: not one fixed outcome
	}{
		{LeastConnection, []int{9, 1}, []int{5, 3}, 2, []int{5, 5}},
		{LeastConnection, []int{9, 1, 1}, []int{0, 0, 4}, 8, []int{4, 4, 4}},
		{WeightedLeast, []int{3, 1}, []int{0, 0}, 400, []int{300, 100}},
		{WeightedLeast, []int{3, 1}, []int{30, 0}, 9, []int{30, 9}},
		{WeightedLeast, []int{10, 1}, []int{1, 0}, 1, []int{1, 1}}, // an idle one is the least, however light
		{ShortestDelay, []int{10, 1}, []int{1, 0}, 1, []int{2, 0}}, // 2/10 < 1/1
		{ShortestDelay, []int{10, 1}, []int{9, 0}, 2, []int{10, 1}},
		{ShortestDelay, []int{4, 2}, []int{0, 0}, 600, []int{400, 200}},
		{NeverQueue, []int{10, 1}, []int{1, 0}, 1, []int{1, 1}},
		{NeverQueue, []int{10, 5}, []int{0, 0}, 1, []int{1, 0}},
		{NeverQueue, []int{10, 1}, []int{1, 1}, 7, []int{8, 1}},
		{NeverQueue, []int{10, 0, 1}, []int{1, 0, 1}, 1, []int{2, 0, 1}}, // quiesced is not idle
	} {
		t.Run(fmt.Sprint(tt.scheduler, tt.weights, tt.loads), func(t *testing.T) {
			b := scheduled(tt.scheduler, tt.weights...)
			for i, n := range tt.loads {
				for range n {
					b.Report(anyone, b.Backends()[i].Addr, 0, nil)
				}
			}
			for range tt.picks {
				be, _ := b.Pick(anyone, nil)
				b.Report(anyone, be, 0, nil)
			}
			var got []int
			for _, s := range b.Backends() {
				got = append(got, int(s.Active))
			}
			require.Equal(t, tt.want, got)
		})
	}
}

// IPVS would send all of these to the first of the list.
func TestLeastSchedulersTakeTurnsAmongEquals(t *testing.T) {
	for _, s := range []Scheduler{LeastConnection, WeightedLeast, ShortestDelay, NeverQueue} {
		b := scheduled(s, 1, 1, 1)
		for range 30 {
			be, _ := b.Pick(anyone, nil)
			b.Report(anyone, be, 0, nil)
			b.Release(be)
		}
		require.Equal(t, []int{10, 10, 10}, shares(b), s)
	}
}

// Dials that fail or are given up no longer weigh on a backend.
func TestPicksInFlightEnd(t *testing.T) {
	for _, err := range []error{errRefused, errGivenUp} {
		b := scheduled(LeastConnection, 1, 1)
		first, _ := b.Pick(anyone, nil)
		second, _ := b.Pick(anyone, nil)
		require.NotEqual(t, first, second)
		b.Report(anyone, first, 0, err)
		third, _ := b.Pick(anyone, nil)
		require.Equal(t, first, third)
	}
}
