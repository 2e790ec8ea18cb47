package balancer

import (
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// One ejection is news twice, when it begins and when it is over, however many tests fail in between. The status tells all
// of it meanwhile.
func TestNewsOfEjections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDialer(addr(1))
		p := NewProber(d.dial)
		t.Cleanup(runProber(t, p))
		b := newBalancer(func(int) int { return 0 }, maxPins, p)
		var news []Ejection
		b.Watch(func(e Ejection) { news = append(news, e) })
		b.Update(Config{Backends: alike(1, 2), Probe: true})
		began := time.Now()
		b.Report(anyone, addr(1), 0, syscall.ETIMEDOUT)
		b.Report(anyone, addr(1), 0, syscall.ETIMEDOUT)
		require.Equal(t, []Ejection{{Backend: addr(1), Since: began, Until: began.Add(800 * time.Millisecond), Err: syscall.ETIMEDOUT, Ejected: 1, Backends: 2}}, news)
		require.Equal(t, 1, b.Ejected())

		time.Sleep(3 * time.Second) // two tests have been refused
		synctest.Wait()
		s := status(t, b, 1)
		require.Equal(t, 3, s.Ejections)
		require.True(t, s.EjectedSince.Equal(began))
		require.Equal(t, errRefused.Error(), s.EjectionError, "of the latest test")
		require.Equal(t, syscall.ETIMEDOUT.Error(), s.LastError, "of a connection")
		require.Len(t, news, 1)

		d.revive(addr(1))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.Len(t, news, 2)
		require.Equal(t, Ejection{Backend: addr(1), Back: true, Since: began, Err: errRefused, Backends: 2}, news[1])
		require.Zero(t, b.Ejected())
		s = status(t, b, 1)
		require.Zero(t, s.EjectedSince)
		require.Empty(t, s.EjectionError)
	})
}

// What the budget does not allow is counted, and what it does is not.
func TestRefusedRetriesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startingAt(0, 1)
		require.True(t, b.Retry())
		eject(b, 1)
		require.False(t, b.Retry())
		require.False(t, b.Retry())
		time.Sleep(100 * time.Millisecond)
		require.True(t, b.Retry())
		require.EqualValues(t, 2, b.Counters().RetriesRefused)
	})
}

func TestConnectTime(t *testing.T) {
	b := startingAt(0, 1, 2)
	b.Report(netip.Addr{}, addr(1), 2*time.Millisecond, nil)
	require.Equal(t, 2*time.Millisecond, status(t, b, 1).ConnectTime)
	require.Zero(t, status(t, b, 2).ConnectTime)
}
