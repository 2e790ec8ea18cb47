package balancer

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const verdict = 200 * time.Millisecond // when the outcome of a dial is known

func TestSuspectsAreAvoided(t *testing.T) {
	for _, s := range schedulers {
		synctest.Test(t, func(t *testing.T) {
			b := startingAt(0)
			b.Update(Config{Backends: alike(1, 2, 3), Scheduler: s.name, Probe: true})
			chosen := func() map[byte]bool {
				set := map[byte]bool{}
				for i := range 200 {
					client := netip.AddrFrom4([4]byte{198, 18, 7, byte(i)})
					be, ok := b.PickFor(client, client, nil)
					require.True(t, ok, s.name)
					b.Report(client, be, 0, errGivenUp)
					set[last(be)] = true
				}
				return set
			}
			require.True(t, b.Overdue(addr(1), verdict, nil), "%s: there are others", s.name)
			require.Equal(t, map[byte]bool{2: true, 3: true}, chosen(), "%s", s.name)
			require.False(t, b.Overdue(addr(1), verdict, []netip.AddrPort{addr(2), addr(3)}), "%s: tried", s.name)
			be, _ := b.Pick(anyone, []netip.AddrPort{addr(2), addr(3)})
			require.Equal(t, addr(1), be, "%s: there is no other", s.name)
			b.Report(anyone, be, 0, errGivenUp)

			require.True(t, b.Overdue(addr(2), verdict, nil), s.name)
			require.False(t, b.Overdue(addr(3), verdict, nil), "%s: no others", s.name)
			require.Len(t, chosen(), 3, "%s: when all are, it makes no difference", s.name)
			b.Report(anyone, addr(3), 0, nil)
			b.Release(addr(3))
			require.Equal(t, map[byte]bool{3: true}, chosen(), "%s: one that answers is none", s.name)
			time.Sleep(verdict - 1)
			require.Equal(t, map[byte]bool{3: true}, chosen(), s.name)
			time.Sleep(time.Nanosecond)
			require.Len(t, chosen(), 3, "%s: no longer than it takes", s.name)
			require.EqualValues(t, 3, b.Counters().Suspicions)
			require.Empty(t, ejected(b), "by itself it is no failure")
		})
	}
}

// Those that have failed come after those that may be about to.
func TestSuspectsComeBeforeTheEjected(t *testing.T) {
	synctest.Test(t, testSuspectsComeBeforeTheEjected)
}

func testSuspectsComeBeforeTheEjected(t *testing.T) {
	b := startingAt(0, 1, 2, 3)
	eject(b, 1)
	b.Overdue(addr(2), time.Hour, nil)
	require.Equal(t, []byte{3, 3, 3}, picks(b, 3))
	be, _ := b.Pick(anyone, []netip.AddrPort{addr(3)})
	require.Equal(t, addr(2), be)
	be, _ = b.Pick(anyone, []netip.AddrPort{addr(3), addr(2)})
	require.Equal(t, addr(1), be)
	eject(b, 3)
	require.Equal(t, []byte{2, 2, 2}, picks(b, 3))
	require.True(t, b.Retry(), "a suspect is not dead")
}

func TestSuspectIsTakenWhereOthersAreFull(t *testing.T) {
	b := startingAt(0)
	b.Update(Config{Backends: alike(1, 2), MaxPerBackend: 1})
	b.Overdue(addr(1), time.Hour, nil)
	require.Equal(t, []byte{2, 1, 0}, picks(b, 3))
}

// A late answer is no reason to move a client; that its dials fail is.
func TestSuspectsKeepTheirPins(t *testing.T) {
	b := startingAt(0)
	b.Update(Config{Backends: alike(1, 2, 3), Affinity: time.Hour})
	require.Equal(t, []byte{1}, picks(b, 1))
	b.Overdue(addr(1), time.Hour, nil)
	require.Equal(t, []byte{1, 1}, picks(b, 2))
	be, _ := b.Pick(netip.MustParseAddr("198.18.9.9"), nil)
	require.NotEqual(t, addr(1), be, "new clients are not pinned to it")
}

func TestSuspicionIsForBackendsAndForATime(t *testing.T) {
	b := startingAt(0, 1, 2)
	require.True(t, b.Overdue(addr(9), time.Hour, nil), "no backend")
	require.True(t, b.Overdue(addr(1), 0, nil))
	require.True(t, b.Overdue(addr(1), -time.Second, nil))
	require.Zero(t, b.Counters().Suspicions)
	require.Equal(t, []byte{1, 2, 1, 2}, picks(b, 4))
	b.Overdue(addr(1), time.Hour, nil)
	b.Update(Config{Backends: alike(2)})
	b.Update(Config{Backends: alike(1, 2)})
	require.Contains(t, picks(b, 4), byte(1), "another pod's dials were late")
}

// Of a backend that is new nothing is known, but of its like: the first to be sent to a dead one need not wait for long.
func TestNewBackendsAreHedgedLikeOthers(t *testing.T) {
	b := startingAt(0, 1, 2)
	connectTimesOf(b, 40*time.Millisecond, 300)
	require.InDelta(t, 40*time.Millisecond, b.HedgeDelay(addr(2)), float64(time.Millisecond))
	for range 5 {
		b.Report(anyone, addr(2), 90*time.Millisecond, nil)
	}
	require.Greater(t, b.HedgeDelay(addr(2)), 90*time.Millisecond, "what is its own counts once it is known")
}
