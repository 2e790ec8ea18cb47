package balancer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStickyExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sticky(10*time.Second, 1, 2)
		require.EqualValues(t, 1, pickFor(b, 1))
		time.Sleep(10*time.Second - time.Nanosecond)
		require.EqualValues(t, 1, pickFor(b, 1))
		require.Equal(t, 1, b.Pins())
		time.Sleep(time.Nanosecond)
		require.Zero(t, b.Pins())
		require.EqualValues(t, 2, pickFor(b, 1), "picking alone is no use")
	})
}

func TestStickyUseIsSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sticky(10*time.Second, 1, 2)
		for range 5 {
			require.EqualValues(t, 1, pickFor(b, 1))
			b.Report(client(1), addr(1), 0, nil)
			time.Sleep(9 * time.Second)
		}
		time.Sleep(time.Second)
		require.EqualValues(t, 2, pickFor(b, 1))
	})
}

// A dial can take longer than what was left of the pin.
func TestStickySuccessAfterExpiryPinsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sticky(time.Second, 1, 2)
		require.EqualValues(t, 1, pickFor(b, 1))
		time.Sleep(2 * time.Second)
		b.Report(client(1), addr(1), 0, nil)
		require.EqualValues(t, 1, pickFor(b, 1))
	})
}

func TestStickyTimeoutChangesApplyLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sticky(3*time.Hour, 1, 2)
		require.EqualValues(t, 1, pickFor(b, 1))
		time.Sleep(3 * time.Second)
		b.Update(Config{Backends: alike(1, 2), Affinity: 5 * time.Second})
		require.EqualValues(t, 1, pickFor(b, 1))
		b.Update(Config{Backends: alike(1, 2), Affinity: 2 * time.Second})
		require.Zero(t, b.Pins())
		require.EqualValues(t, 2, pickFor(b, 1))
		b.Update(Config{Backends: alike(1, 2), Affinity: time.Hour})
		time.Sleep(time.Minute)
		require.EqualValues(t, 2, pickFor(b, 1))
	})
}

// Neither cleared away nor picked for, but run out all the same.
func TestStickyLongerTimeoutRevivesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sticky(2*time.Second, 1, 2)
		require.EqualValues(t, 1, pickFor(b, 1))
		time.Sleep(time.Second)
		require.EqualValues(t, 2, pickFor(b, 2))
		time.Sleep(time.Second)
		b.Update(Config{Backends: alike(1, 2), Affinity: time.Hour})
		require.Equal(t, 1, b.Pins())
		b.Update(Config{Backends: alike(1, 2), Affinity: 2 * time.Hour})
		require.Equal(t, 1, b.Pins())
		b.Report(client(1), addr(2), 0, nil)
		require.Equal(t, []byte{2, 2}, pickEach(b, 2))
	})
}

// Whether the Service or its endpoints are seen first, the settings are the Service's.
func TestStickyServiceFirstOrSecond(t *testing.T) {
	for name, first := range map[string]Config{
		"service first":   {Affinity: 2 * time.Second},
		"endpoints first": {Backends: alike(1, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := startingAt(0)
				b.Update(first)
				b.Update(Config{Backends: alike(1, 2), Affinity: 2 * time.Second})
				require.Equal(t, []byte{1, 2, 1}, pickEach(b, 3))
				require.Equal(t, []byte{1, 2, 1}, pickEach(b, 3))
				time.Sleep(2 * time.Second)
				require.Equal(t, []byte{2, 1, 2}, pickEach(b, 3), "the Service's timeout holds, not a default")
			})
		})
	}
}

// Expired pins make room by themselves and are not counted as forgotten.
func TestNewPinsClearAwayExpiredOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBalancer(func(int) int { return 0 }, 8, nil)
		b.Update(Config{Backends: alike(1), Affinity: time.Minute})
		pickEach(b, 8)
		time.Sleep(time.Minute)
		pickFor(b, 100)
		require.Equal(t, 7, b.view.Load().pins.cache.Len())
		pickFor(b, 101)
		require.Equal(t, 6, b.view.Load().pins.cache.Len())
		require.Equal(t, 2, b.Pins())
		require.Zero(t, b.Counters().Evictions)
	})
}

// One balancer per Service port: a goroutine each, such as an expiring cache would start, could never be stopped.
// synctest fails a bubble that ends with goroutines left.
func TestNothingRunsInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := sticky(time.Minute, 1, 2)
		pickEach(b, 10)
		b.Update(Config{})
	})
}
