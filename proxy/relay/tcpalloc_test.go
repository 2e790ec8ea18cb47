package relay

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// stream is what the peers of a Relay's connection use here: bare sockets, which do not allocate.
type stream struct {
	t       *testing.T
	relay   *Relay
	l       *Listener
	backend int // listening
}

func newStream(t *testing.T, restless time.Duration) *stream {
	s := &stream{t: t, relay: New(Config{})}
	s.relay.restless = restless
	loopback := netip.MustParseAddr("127.0.0.1")
	s.backend = s.socket()
	require.NoError(t, unix.Bind(s.backend, sockaddr(netip.AddrPortFrom(loopback, 0))))
	require.NoError(t, unix.Listen(s.backend, 16))
	name, err := unix.Getsockname(s.backend)
	require.NoError(t, err)
	to := one(netip.AddrPortFrom(loopback, uint16(name.(*unix.SockaddrInet4).Port)))
	for port := uint16(61000); s.l == nil; port++ {
		s.l, _ = s.relay.Listen(netip.AddrPortFrom(loopback, port), "default/web/TCP", to)
		require.NotZero(t, port)
	}
	s.l.Serve()
	t.Cleanup(func() {
		unix.Close(s.backend)
		s.l.Close()
		s.relay.Shutdown(t.Context())
	})
	return s
}

func (s *stream) socket() int {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(s.t, err)
	return fd
}

// connect returns both peers of a new connection.
func (s *stream) connect(to unix.Sockaddr) (client, server int) {
	client = s.socket()
	require.NoError(s.t, unix.Connect(client, to))
	fd, _, errno := unix.Syscall6(unix.SYS_ACCEPT4, uintptr(s.backend), 0, 0, unix.SOCK_CLOEXEC, 0, 0) // without a Sockaddr
	require.Zero(s.t, errno)
	return client, int(fd)
}

// Bytes there and back, on a connection that exists, allocate nothing.
func TestRoundTripsAllocateNothing(t *testing.T) {
	s := newStream(t, time.Hour)
	client, server := s.connect(sockaddr(s.l.Addr()))
	buf := make([]byte, 64)
	exchange := func() {
		unix.Write(client, buf)
		unix.Read(server, buf)
		unix.Write(server, buf)
		unix.Read(client, buf)
	}
	exchange()
	before := s.l.Stats()
	assert.Zero(t, int(testing.AllocsPerRun(1000, exchange)))
	assert.EqualValues(t, 1001*64, s.l.Stats().BytesOut-before.BytesOut)
	unix.Close(client)
	unix.Close(server)
}

// A connection uses the records of those before it.
func TestConnectionsAllocateNothing(t *testing.T) {
	s := newStream(t, time.Hour)
	to := sockaddr(s.l.Addr())
	buf := make([]byte, 64)
	exchange := func() {
		client, server := s.connect(to)
		unix.Write(client, buf)
		unix.Read(server, buf)
		unix.Write(server, buf)
		unix.Read(client, buf)
		unix.Close(client)
		unix.Read(server, buf) // the end
		unix.Close(server)
	}
	for range 100 {
		exchange()
	}
	assert.Zero(t, int(testing.AllocsPerRun(500, exchange)))
	assert.EqualValues(t, 601, s.l.Stats().Connected)
}
