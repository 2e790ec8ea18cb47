package relay

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// one is a Balancer of one backend.
type one netip.AddrPort

func (o one) Pick(_ netip.Addr, tried []netip.AddrPort) (netip.AddrPort, bool) {
	return netip.AddrPort(o), len(tried) == 0
}
func (one) Report(netip.Addr, netip.AddrPort, time.Duration, error) {}
func (one) Fail(netip.Addr, netip.AddrPort, error)                  {}
func (one) Release(netip.AddrPort)                                  {}
func (one) HedgeDelay(netip.AddrPort) time.Duration                 { return time.Hour }
func (one) Retry() bool                                             { return true }
func (one) Working() bool                                           { return true }
func (one) WantsDestination() bool                                  { return false }
func (o one) PickFor(c, _ netip.Addr, t []netip.AddrPort) (netip.AddrPort, bool) {
	return o.Pick(c, t)
}
func (one) Freed([]netip.AddrPort) <-chan struct{}                       { return nil }
func (one) Overdue(netip.AddrPort, time.Duration, []netip.AddrPort) bool { return false }

// A datagram there and one back, on a session that exists, allocate nothing. Both peers are bare sockets, which do not
// allocate either.
func TestDatagramsAllocateNothing(t *testing.T) {
	loopback := netip.MustParseAddr("127.0.0.1")
	socket := func() (fd int, addr netip.AddrPort) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		t.Cleanup(func() { unix.Close(fd) })
		require.NoError(t, unix.Bind(fd, sockaddr(netip.AddrPortFrom(loopback, 0))))
		name, err := unix.Getsockname(fd)
		require.NoError(t, err)
		return fd, netip.AddrPortFrom(loopback, uint16(name.(*unix.SockaddrInet4).Port))
	}
	backend, backendAddr := socket()
	client, _ := socket()
	r := New(Config{})
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		r.Shutdown(ctx)
	})
	var l *UDPListener
	for port := uint16(61000); l == nil; port++ {
		l, _ = r.ListenUDP(netip.AddrPortFrom(loopback, port), "default/dns/UDP", one(backendAddr))
		require.NotZero(t, port)
	}
	l.Serve()
	require.NoError(t, unix.Connect(client, sockaddr(l.Addr())))
	buf := make([]byte, 512)
	query := []byte("a query of some sixty bytes, as a resolver would send it here...")

	_, err := unix.Write(client, query)
	require.NoError(t, err)
	_, session, err := unix.Recvfrom(backend, buf, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Connect(backend, session))
	exchange := func() {
		unix.Write(backend, buf[:300])
		unix.Read(client, buf)
		unix.Write(client, query)
		unix.Read(backend, buf)
	}
	exchange()
	before := l.Stats()
	assert.Zero(t, int(testing.AllocsPerRun(1000, exchange)))
	assert.EqualValues(t, 1001, l.Stats().DatagramsOut-before.DatagramsOut)
}
