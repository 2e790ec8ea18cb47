package relaytest

import (
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy/relay"
)

// Clients that take little, or nothing any more, while the kernel holds megabytes for them.

// sendQueue is how many bytes l has sent, or is to send, to a client that has not acknowledged them.
func sendQueue(t *testing.T, l Listener, conn *net.TCPConn) int {
	t.Helper()
	client := netip.MustParseAddrPort(conn.LocalAddr().String())
	fds, err := os.ReadDir("/proc/self/fd") // the engine's are among them
	require.NoError(t, err)
	for _, entry := range fds {
		fd, err := strconv.Atoi(entry.Name())
		require.NoError(t, err)
		local, _ := unix.Getsockname(fd)
		peer, _ := unix.Getpeername(fd)
		if inet(local) == l.Addr() && inet(peer) == client {
			return outQueue(fd)
		}
	}
	return 0
}

func inet(a unix.Sockaddr) netip.AddrPort {
	if a, ok := a.(*unix.SockaddrInet4); ok {
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// takeSlowly takes too little for the send buffer to have room again (tcp_check_space), within each of several hours.
func takeSlowly(t *testing.T, engine Engine, l Listener, conn *net.TCPConn) {
	t.Helper()
	eventually(t, func() bool { return sendQueue(t, l, conn) > 1<<20 }, "the send buffer to fill")
	for range 8 {
		buf := make([]byte, 8<<10)
		for before := sendQueue(t, l, conn); sendQueue(t, l, conn) >= before; {
			_, err := conn.Read(buf)
			require.NoError(t, err)
		}
		engine.Advance(40 * time.Minute)
	}
}

const more = 16 << 20 // bytes than all buffers on the way hold

// Each byte counts that a slow reader takes, also when nothing else is left to do.
func testIdleTimeoutSlowReader(t *testing.T, new New) {
	engine, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) {
		c.Write(make([]byte, more))
		io.Copy(io.Discard, c)
	})))
	l.Configure(relay.Settings{IdleTimeout: time.Hour})
	conn := dial(t, l)
	takeSlowly(t, engine, l, conn)
	assert.Zero(t, l.Stats().Idle)
	expectCut(t, engine, l, conn)
	assert.EqualValues(t, 1, l.Stats().Idle)
}

// A slow reader of a half-closed connection: each byte that it takes counts, not each buffer.
func testHalfCloseSlowReader(t *testing.T, new New) {
	engine, l := start(t, new, relay.Config{HalfCloseTimeout: time.Hour}, balance(backend(t, func(c *net.TCPConn) {
		io.Copy(io.Discard, c)
		c.Write(make([]byte, more))
	})))
	conn := dial(t, l)
	conn.CloseWrite()
	takeSlowly(t, engine, l, conn)
	assert.Zero(t, l.Stats().HalfClosed)
	expectCut(t, engine, l, conn)
	assert.EqualValues(t, 1, l.Stats().HalfClosed)
}

// expectCut waits for the end of a connection whose client takes nothing any more. Bytes are missing, so that is no clean
// end.
func expectCut(t *testing.T, engine Engine, l Listener, conn *net.TCPConn) {
	t.Helper()
	eventually(t, func() bool {
		engine.Advance(time.Hour) // bytes may have been under way before
		return l.Stats().Active == 0
	}, "the connection to be cut")
	_, err := io.Copy(io.Discard, conn)
	assert.ErrorIs(t, err, syscall.ECONNRESET)
}

// A receiver that takes nothing does not get a clean end.
func testIdleTimeoutStuck(t *testing.T, new New) {
	engine, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) { c.Write(make([]byte, more)) })))
	l.Configure(relay.Settings{IdleTimeout: time.Hour})
	conn := dial(t, l)
	eventually(t, func() bool { return sendQueue(t, l, conn) > 0 }, "bytes that the client does not take")
	expectCut(t, engine, l, conn)
	assert.EqualValues(t, 1, l.Stats().Idle)
}

// fill writes until nobody on the way takes any more.
func fill(conn *net.TCPConn) (size int) {
	block := make([]byte, 1<<20)
	for n := 1; n > 0; size += n {
		conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		n, _ = conn.Write(block)
	}
	conn.SetWriteDeadline(time.Now().Add(patience))
	return size
}
