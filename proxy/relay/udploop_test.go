package relay

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// brittle is a Balancer with a fault where sessions end.
type brittle struct{ one }

func (brittle) Release(netip.AddrPort)                  { panic("a bug in the balancer") }
func (brittle) HedgeDelay(netip.AddrPort) time.Duration { return 0 }
func (brittle) Retry() bool                             { return true }
func (brittle) Working() bool                           { return true }
func (brittle) WantsDestination() bool                  { return false }
func (b brittle) PickFor(c, _ netip.Addr, t []netip.AddrPort) (netip.AddrPort, bool) {
	return b.Pick(c, t)
}
func (brittle) Freed([]netip.AddrPort) <-chan struct{}                       { return nil }
func (brittle) Overdue(netip.AddrPort, time.Duration, []netip.AddrPort) bool { return false }

// A fault in ending a session ends neither the loop, nor the process, nor a Close or Shutdown that waits for the loop.
func TestLoopSurvivesFaultsAtTheEndOfSessions(t *testing.T) {
	backend, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer backend.Close()
	r := New(Config{UDPTimeout: 40 * time.Millisecond})
	listen := func(b Balancer) (l *UDPListener) {
		for port := uint16(61000); l == nil; port++ {
			require.NotZero(t, port)
			l, _ = r.ListenUDP(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), "default/dns/UDP", b)
		}
		l.Serve()
		conn, err := net.Dial("udp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		conn.Write([]byte("x"))
		require.Eventually(t, func() bool { return l.Stats().Connected == 1 }, time.Minute, time.Millisecond)
		return l
	}
	to := one(backend.LocalAddr().(*net.UDPAddr).AddrPort())
	expiring := listen(brittle{to})
	require.Eventually(t, func() bool { return expiring.Stats().Expired > 0 }, time.Minute, time.Millisecond)
	closing := listen(brittle{to})
	done := make(chan struct{})
	go func() {
		closing.Close()
		listen(to)
		r.Shutdown(context.Background())
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		require.FailNow(t, "the loop is stuck")
	}
}
