package relaytest

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy/relay"
)

// What a backend does that ends a connection without having done anything with it.
var earlyEnds = map[string]struct {
	serve func(*net.TCPConn)
	seen  error // by the client, if there is nobody else
}{
	"FIN":   {func(*net.TCPConn) {}, io.EOF},
	"reset": {func(c *net.TCPConn) { c.SetLinger(0) }, syscall.ECONNRESET},
}

// endSeen is how a connection ends that gets no byte. A client may hear of a reset as early as in connect(2).
func endSeen(l Listener) error {
	conn, err := net.DialTimeout("tcp", l.Addr().String(), patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	_, err = conn.Read(make([]byte, 1))
	return err
}

func testEarlyClose(t *testing.T, new New) {
	for name, end := range earlyEnds {
		first, second := backend(t, end.serve), backend(t, end.serve)
		b := balance(first, second, backend(t, echo))
		_, l := start(t, new, relay.Config{}, b)
		conn := dial(t, l)
		eventually(t, func() bool { return len(b.picked()) == 3 }, name)
		roundTrip(t, conn, "served all the same")
		assert.Equal(t, []netip.AddrPort{first, second}, b.failures(), name)
		s := l.Stats()
		assert.EqualValues(t, 1, s.Connected, name)
		assert.EqualValues(t, 1, s.Retried, name)
		assert.EqualValues(t, 2, s.Retries, name)
		assert.Zero(t, s.Resets, name)
	}
}

// A process that ends without having accepted: its kernel resets what is in the queue.
func testEarlyCloseOfAQueue(t *testing.T, new New) {
	fd, leaving := bound(t)
	require.NoError(t, unix.Listen(fd, 128))
	b := balance(leaving, backend(t, echo))
	_, l := start(t, new, relay.Config{}, b)
	const n = 20
	var conns []*net.TCPConn
	for range n {
		conns = append(conns, dial(t, l))
	}
	eventually(t, func() bool { return l.Stats().Connected == n }, "the connections")
	require.NoError(t, unix.Close(fd))
	for _, conn := range conns {
		// A client that sends before the reset has come to the relay has to bear it: its bytes may have been read.
		eventually(t, func() bool { return l.Stats().EarlyCloses == n/2 }, "the resets")
		roundTrip(t, conn, "served by the other")
	}
	assert.EqualValues(t, n, l.Stats().Connected)
	assert.Len(t, b.failures(), n/2)
}

// Each is asked once, and the client sees what the last one does.
func testAllCloseEarly(t *testing.T, new New) {
	for name, end := range earlyEnds {
		b := balance(backend(t, end.serve), backend(t, end.serve), backend(t, end.serve))
		_, l := start(t, new, relay.Config{}, b)
		require.ErrorIs(t, endSeen(l), end.seen, name)
		assert.ElementsMatch(t, b.backends, b.picked(), name)
		assert.ElementsMatch(t, b.backends, b.failures(), name)
		assert.EqualValues(t, 3, l.Stats().EarlyCloses, name)
		assert.EqualValues(t, 1, l.Stats().Retried, name)
		assert.Zero(t, l.Stats().Failed, name)
	}
}

// The others do not even answer: the client sees what the one did that has.
func testEarlyCloseThenRefused(t *testing.T, new New) {
	for name, end := range earlyEnds {
		b := balance(backend(t, end.serve), refused(t))
		_, l := start(t, new, relay.Config{}, b)
		require.ErrorIs(t, endSeen(l), end.seen, name)
		assert.ElementsMatch(t, b.backends, b.failures(), name)
		eventually(t, func() bool { return l.Stats().Active == 0 }, "the connection to end")
		assert.EqualValues(t, 1, l.Stats().Connected, name)
		assert.Zero(t, l.Stats().Failed, name)
	}
}

// A byte from the backend is the beginning of an answer.
func testCloseAfterAByte(t *testing.T, new New) {
	for name, end := range earlyEnds {
		received := make(chan struct{})
		release := sync.OnceFunc(func() { close(received) })
		defer release()
		b := balance(backend(t, func(c *net.TCPConn) {
			c.Write([]byte("x"))
			<-received
			end.serve(c)
		}), backend(t, echo))
		_, l := start(t, new, relay.Config{}, b)
		conn := dial(t, l)
		_, err := io.ReadFull(conn, make([]byte, 1))
		require.NoError(t, err, name)
		release()
		_, err = conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, end.seen, name)
		assert.Empty(t, b.failures(), name)
		assert.Len(t, b.picked(), 1, name)
	}
}

// Probes connect and close, and the backend then does the same.
func testCloseAfterTheClients(t *testing.T, new New) {
	b := balance(backend(t, func(c *net.TCPConn) { io.Copy(io.Discard, c) }), backend(t, echo))
	_, l := start(t, new, relay.Config{}, b)
	conn := dial(t, l)
	require.NoError(t, conn.CloseWrite())
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	assert.Empty(t, b.failures())
	assert.Len(t, b.picked(), 1)
}

// Servers close connections that nobody uses.
func testLateClose(t *testing.T, new New) {
	for name, end := range earlyEnds {
		late := make(chan struct{})
		b := balance(backend(t, func(c *net.TCPConn) { <-late; end.serve(c) }), backend(t, echo))
		engine, l := start(t, new, relay.Config{DialTimeout: time.Hour}, b)
		conn := dial(t, l)
		eventually(t, func() bool { return l.Stats().Connected == 1 }, "the connection")
		engine.Advance(time.Hour)
		close(late)
		_, err := conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, end.seen, name)
		assert.Empty(t, b.failures(), name)
		assert.Len(t, b.picked(), 1, name)
	}
}

// A server that has nothing to say closes its direction at once and reads on.
func testEarlyHalfClose(t *testing.T, new New) {
	received := make(chan string, 1)
	sink := func(c *net.TCPConn) {
		c.CloseWrite()
		if all, _ := io.ReadAll(c); len(all) > 0 {
			received <- string(all)
		}
	}
	_, l := start(t, new, relay.Config{}, balance(backend(t, sink), backend(t, sink)))
	conn := dial(t, l)
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	conn.Write([]byte("a line of a log"))
	conn.CloseWrite()
	select {
	case got := <-received:
		assert.Equal(t, "a line of a log", got)
	case <-time.After(patience):
		require.FailNow(t, "the bytes do not arrive")
	}
}

// Bytes that were on their way to a backend when it left are either lost with it, and the client hears of that, or the
// next one gets all of them.
func testEarlyCloseKeepsBytes(t *testing.T, new New) {
	const clients, rounds = 8, 100
	b := balance(backend(t, earlyEnds["reset"].serve), backend(t, earlyEnds["FIN"].serve), backend(t, echo))
	_, l := start(t, new, relay.Config{}, b)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			want := random(100 + i*999)
			for range rounds {
				conn, err := net.Dial("tcp", l.Addr().String())
				if !assert.NoError(t, err) {
					return
				}
				conn.SetDeadline(time.Now().Add(patience))
				conn.Write(want)
				got := make([]byte, len(want))
				if n, err := io.ReadFull(conn, got); err == nil {
					assert.Equal(t, want, got)
				} else {
					assert.Zero(t, n)
					assert.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF), "%v", err)
				}
				conn.Close()
			}
		})
	}
	wg.Wait()
	eventually(t, func() bool { return l.Stats().Active == 0 }, "the connections to end")
	assert.Positive(t, l.Stats().EarlyCloses)
}
