package relay

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Any mixture of timers fires like a list of times that is looked through at each step: each once, none early, all that
// are due, however far the clock jumps.
func TestWheelIsAList(t *testing.T) {
	check := func(ok bool, what string) {
		if !ok {
			t.Helper()
			t.Fatal(what)
		}
	}
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		var w wheel
		now := time.Duration(0)
		timers := make([]timer, 40)
		due := map[*timer]time.Duration{}
		for range 2000 {
			tm := &timers[random.IntN(len(timers))]
			switch random.IntN(4) {
			case 0, 1:
				at := now + time.Duration(random.Int64N(1<<random.IntN(45))) // up to some nine hours
				w.set(tm, at)
				due[tm] = (at + tick - 1) / tick * tick
			case 2:
				w.unset(tm)
				delete(due, tm)
			case 3:
				now += time.Duration(random.Int64N(1 << random.IntN(43)))
				for x := w.expired(now); x != nil; x = w.expired(now) {
					at, ok := due[x]
					check(ok, "fired without being set")
					check(at <= now, "fired early")
					check(!x.set, "set and fired")
					delete(due, x)
				}
				for _, at := range due {
					check(at > now.Truncate(tick), "due and not fired")
				}
			}
			at := w.wake()
			check((at > 0) == (len(due) > 0), "waits for nothing, or not at all")
			for _, d := range due {
				check(at <= max(d, now, 1), "woken too late")
			}
		}
	}
}

// An alarm that is set again while it fires, for now, fires in the next round: the loop gets on.
func TestWheelSetAgainForNow(t *testing.T) {
	var w wheel
	var a, b timer
	w.set(&a, time.Second)
	w.set(&b, time.Second)
	require.NotNil(t, w.expired(time.Second))
	require.NotNil(t, w.expired(time.Second))
	require.Nil(t, w.expired(time.Second))
	w.set(&a, time.Second+tick)
	require.Nil(t, w.expired(time.Second))
	require.Same(t, &a, w.expired(time.Second+tick))
}

func BenchmarkWheel(b *testing.B) {
	var w wheel
	timers := make([]timer, 10_000)
	for i := range timers {
		w.set(&timers[i], time.Duration(i)*time.Millisecond)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		t := &timers[i%len(timers)]
		w.unset(t)
		w.set(t, 250*time.Millisecond)
	}
}
