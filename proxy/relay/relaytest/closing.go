package relaytest

import (
	"errors"
	"io"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
	"redial/proxy/relay"
)

func netPort(p uint16) string { return strconv.Itoa(int(p)) }

// printf x | nc -N: the server answers only after it has seen the end of the request.
func testClientClosesFirst(t *testing.T, new New) {
	_, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) {
		request, _ := io.ReadAll(c)
		c.Write(append([]byte("answer to "), request...))
	})))
	conn := dial(t, l)
	conn.Write([]byte("question"))
	require.NoError(t, conn.CloseWrite())
	got, err := io.ReadAll(conn)
	require.NoError(t, err, "the end is a FIN, not a reset")
	assert.Equal(t, "answer to question", string(got))
}

func testBackendClosesFirst(t *testing.T, new New) {
	received := make(chan string, 1)
	_, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) {
		c.Write([]byte("that is all"))
		c.CloseWrite()
		rest, _ := io.ReadAll(c)
		received <- string(rest)
	})))
	conn := dial(t, l)
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, "that is all", string(got))
	conn.Write([]byte("but I have more"))
	conn.CloseWrite()
	assert.Equal(t, "but I have more", <-received)
	eventually(t, func() bool { return l.Stats().Active == 0 }, "the connection to end")
	assert.Zero(t, l.Stats().Resets)
}

// A backend that never closes must not keep a half-closed connection for ever.
func testHalfCloseTimeout(t *testing.T, new New) {
	gotFIN, ended := make(chan struct{}), make(chan struct{})
	engine, l := start(t, new, relay.Config{HalfCloseTimeout: time.Hour}, balance(backend(t, quietUntilReset(gotFIN, ended))))
	conn := dial(t, l)
	conn.CloseWrite()
	waitFor(t, gotFIN, "the client's FIN at the backend")
	engine.Advance(59 * time.Minute)
	assert.Zero(t, l.Stats().HalfClosed)
	eventually(t, func() bool {
		engine.Advance(time.Minute) // the FIN may not have been acknowledged before, which is a movement, too
		return l.Stats().HalfClosed == 1
	}, "the end")
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	waitFor(t, ended, "the reset at the backend")
}

// quietUntilReset is a backend that reads to the end and says nothing.
func quietUntilReset(gotFIN, ended chan<- struct{}) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		io.Copy(io.Discard, c)
		close(gotFIN)
		for !peerHasReset(c) {
			time.Sleep(time.Millisecond)
		}
		close(ended)
	}
}

// peerHasReset asks the kernel for the state of a connection on which nothing is read or written.
func peerHasReset(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	reset := false
	raw.Control(func(fd uintptr) {
		n, _ := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR)
		reset = n != 0
	})
	return reset
}

// A long answer takes longer than the timeout; each of its bytes renews it.
func testHalfCloseRearmed(t *testing.T, new New) {
	next := make(chan struct{})
	engine, l := start(t, new, relay.Config{HalfCloseTimeout: time.Hour}, balance(backend(t, func(c *net.TCPConn) {
		io.Copy(io.Discard, c)
		c.Write([]byte("x"))
		for range next {
			c.Write([]byte("x"))
		}
	})))
	defer close(next)
	conn := dial(t, l)
	conn.CloseWrite()
	for range 5 {
		_, err := io.ReadFull(conn, make([]byte, 1))
		require.NoError(t, err)
		engine.Advance(40 * time.Minute)
		next <- struct{}{}
	}
	assert.Zero(t, l.Stats().HalfClosed)
}

// The client has sent its FIN and then dies. The backend, which is quiet, must hear of it.
func testHalfClosedClientGoes(t *testing.T, new New) {
	gotFIN, ended := make(chan struct{}), make(chan struct{})
	_, l := start(t, new, relay.Config{}, balance(backend(t, quietUntilReset(gotFIN, ended))))
	conn := dial(t, l)
	conn.CloseWrite()
	waitFor(t, gotFIN, "the client's FIN at the backend")
	conn.SetLinger(0)
	conn.Close()
	waitFor(t, ended, "the reset at the backend")
}

// A reset must not overtake the bytes before it, however slowly they are read, nor turn into a clean end.
func testBackendResets(t *testing.T, new New) {
	for _, size := range []int{0, 10, 100 << 10, 3 << 20} {
		reset := make(chan struct{})
		_, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) {
			io.ReadFull(c, make([]byte, 1))
			c.Write(random(size))
			for unsentBytes(c) > 0 {
				time.Sleep(time.Millisecond)
			}
			c.SetLinger(0)
			c.Close()
			close(reset)
		})))
		conn := dial(t, l)
		conn.Write([]byte("?"))
		if size < 1<<20 { // more does not fit into the buffers on the way
			waitFor(t, reset, "the backend's reset")
		}
		got, err := io.ReadAll(conn)
		assert.ErrorIs(t, err, syscall.ECONNRESET, "%d bytes", size)
		assert.Equal(t, size, len(got))
	}
}

func unsentBytes(c *net.TCPConn) int {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	left := 0
	raw.Control(func(fd uintptr) { left = outQueue(int(fd)) })
	return left
}

// A server that answers early and closes while the client still sends: the answer arrives, then the reset.
func testBackendResetsAfterFIN(t *testing.T, new New) {
	_, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) {
		c.Write([]byte("413 too large"))
		c.CloseWrite()
		io.ReadFull(c, make([]byte, 1))
	})))
	conn := dial(t, l)
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, "413 too large", string(got))
	for err == nil {
		_, err = conn.Write(make([]byte, 1000))
	}
	assert.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE), "%v", err)
}

func testClientResets(t *testing.T, new New) {
	got := make(chan error, 1)
	count := make(chan int, 1)
	_, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) {
		b, err := io.ReadAll(c)
		count <- len(b)
		got <- err
	})))
	conn := dial(t, l)
	conn.Write([]byte("0123456789"))
	eventually(t, func() bool { return l.Stats().BytesIn == 10 }, "the bytes at the relay")
	conn.SetLinger(0)
	conn.Close()
	assert.Equal(t, 10, <-count)
	assert.ErrorIs(t, <-got, syscall.ECONNRESET)
	eventually(t, func() bool { return l.Stats().Resets == 1 }, "the reset to be counted")
}

// Power cut: packets to the backend, then to the client, are lost without a word.
func testPeerVanishes(t *testing.T, new New) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		pod, err := node.AddHost("pod", "198.18.1.2/24")
		require.NoError(t, err)
		client, err := node.AddHost("client", "198.18.2.2/24")
		require.NoError(t, err)
		var pl net.Listener
		require.NoError(t, pod.Do(func() (err error) { pl, err = net.Listen("tcp", "198.18.1.2:8080"); return err }))
		serveOn(t, pl, echo)
		cfg := relay.Config{KeepAlive: time.Second, UserTimeout: time.Second}
		_, l := startOn(t, new, cfg, balance(pl.Addr().(*net.TCPAddr).AddrPort()), "0.0.0.0")
		connect := func() (conn net.Conn) {
			require.NoError(t, client.Do(func() (err error) {
				conn, err = net.Dial("tcp", net.JoinHostPort("198.18.2.1", portOf(l)))
				return err
			}))
			conn.SetDeadline(time.Now().Add(patience))
			roundTrip(t, conn, "alive")
			return conn
		}

		idle := connect()
		drop(t, pod, "eth0")
		_, err = idle.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET, "an idle connection to a backend that vanished")
		undrop(t, pod, "eth0")

		connect()
		drop(t, client, "eth0")
		eventually(t, func() bool { return l.Stats().Active == 0 }, "the connection of a client that vanished to end")
	})
}

func drop(t *testing.T, h *lab.Host, device string) {
	t.Helper()
	_, err := h.Output("iptables", "-I", "INPUT", "-i", device, "-j", "DROP")
	if err != nil {
		t.Skip("cannot drop packets: " + err.Error())
	}
}

func undrop(t *testing.T, h *lab.Host, device string) {
	t.Helper()
	_, err := h.Output("iptables", "-D", "INPUT", "-i", device, "-j", "DROP")
	require.NoError(t, err)
}
