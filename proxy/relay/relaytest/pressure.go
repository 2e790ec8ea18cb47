package relaytest

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
	"redial/proxy/relay"
)

// A client that pauses is alive as long as it answers the kernel's probes, for whatever time it takes nothing.
func testPausedClient(t *testing.T, new New) {
	t.Parallel()
	const size = 8 << 20
	_, l := start(t, new, relay.Config{UserTimeout: time.Second}, balance(backend(t, func(c *net.TCPConn) {
		c.Write(random(size))
	})))
	conn := dial(t, l)
	paused := time.NewTimer(3 * time.Second) // several probes
	defer paused.Stop()
	for waiting := true; waiting; {
		select {
		case <-paused.C:
			waiting = false
		default:
			require.False(t, peerHasReset(conn), "cut")
			time.Sleep(10 * time.Millisecond)
		}
	}
	n, err := io.Copy(io.Discard, conn)
	require.NoError(t, err)
	assert.EqualValues(t, size, n)
}

// Both sides have sent their FIN, and the backend resets because it never read the upload. What it had answered before
// still has to arrive.
func testResetAfterBothFINs(t *testing.T, new New) {
	const size = 2 << 20
	answered, goOn := make(chan struct{}), make(chan struct{})
	_, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) {
		c.Write(random(size))
		c.CloseWrite()
		close(answered)
		<-goOn
		c.Close() // with bytes unread: a reset
	})))
	conn := dial(t, l)
	waitFor(t, answered, "the answer")
	eventually(t, func() bool { return l.Stats().BytesOut == size }, "the answer at the relay")
	fill(conn)
	conn.CloseWrite()
	close(goOn)
	n, err := io.Copy(io.Discard, conn)
	assert.EqualValues(t, size, n, "%v", err)
}

// The relay is stuck writing to a backend that takes nothing, so nobody reads the client, which resets.
func testClientResetsWhileBackendIsStuck(t *testing.T, new New) {
	ending := make(chan struct{})
	engine, l := start(t, new, relay.Config{}, balance(backend(t, func(*net.TCPConn) { <-ending })))
	defer close(ending)
	conn := dial(t, l)
	fill(conn)
	conn.SetLinger(0)
	conn.Close()
	eventually(t, func() bool {
		engine.Advance(time.Minute) // it looks whether the backend takes anything
		return l.Stats().Active == 0
	}, "the connection to end")
}

// Listeners come and go while clients connect. No connection escapes the shutdown.
func testCloseRacesWithAccept(t *testing.T, new New) {
	engine, listen := new(relay.Config{})
	b := balance(backend(t, echo))
	for i := range 300 {
		l := listenAnywhere(t, listen, netip.MustParseAddr("127.0.0.1"), b)
		l.Serve()
		go func() {
			time.Sleep(time.Duration(i) * time.Microsecond)
			l.Close()
		}()
		if conn, err := net.Dial("tcp", l.Addr().String()); err == nil {
			defer conn.Close() // stays open until the end
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	done := make(chan struct{})
	go func() { engine.Shutdown(ctx); close(done) }()
	waitFor(t, done, "the shutdown")
	assert.True(t, b.balanced())
	_, err := listen(netip.MustParseAddrPort("127.0.0.1:61000"), "late", b)
	assert.ErrorIs(t, err, relay.ErrShutdown)
}

// The budget is spent in the middle of a dial: that backend had no fair chance.
func testEndOfBudgetBlamesNobody(t *testing.T, new New) {
	first, _ := silentBackend(t)
	second, _ := silentBackend(t)
	b := balance(first, second)
	engine, l := start(t, new, relay.Config{TryTimeout: 40 * time.Minute, DialTimeout: time.Hour}, b)
	conn := dial(t, l)
	eventually(t, func() bool { return len(b.picked()) == 1 }, "the dial")
	engine.Advance(40 * time.Minute)
	eventually(t, func() bool { return len(b.picked()) == 2 }, "the next dial")
	engine.Advance(20 * time.Minute)
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	assert.Equal(t, []netip.AddrPort{first}, b.failures())
	assert.Len(t, b.picked(), 2)
}

func testShutdownBlamesNobody(t *testing.T, new New) {
	silent, _ := silentBackend(t)
	b := balance(silent)
	engine, l := start(t, new, relay.Config{}, b)
	dial(t, l)
	eventually(t, func() bool { return len(b.picked()) == 1 }, "the dial")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	engine.Shutdown(ctx)
	assert.Empty(t, b.failures())
}

// The last descriptor does for accepting, not for dialling. That is nobody's fault but ours, however long it takes.
func testShortageBlamesNobody(t *testing.T, new New) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, _ *lab.Host) {
		const clients = 10
		b := balance(backend(t, echo))
		engine, l := start(t, new, relay.Config{MaxFDs: 1 << 20, TryTimeout: time.Hour}, b)
		roundTrip(t, dial(t, l), "before")
		var fds []int
		for range clients {
			fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
			require.NoError(t, err)
			fds = append(fds, fd)
		}
		limit := uint64(fds[clients-1] + 1 + 1)
		var old syscall.Rlimit
		require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old))
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: old.Max}))
		addr := &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: int(l.Addr().Port())}
		for _, fd := range fds {
			require.NoError(t, syscall.Connect(fd, addr))
		}
		eventually(t, func() bool { return len(b.picked()) > 1 }, "the dial")
		for range 10 {
			engine.Advance(time.Hour)
		}
		assert.EqualValues(t, 1, l.Stats().Connected)
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old))
		eventually(t, func() bool { return l.Stats().Connected == 1+clients }, "all to be served")
		assert.Empty(t, b.failures())
		for _, fd := range fds {
			syscall.Close(fd)
		}
	})
}

// Clients that left while they waited for descriptors cost no backend a connection.
func testClientLeavesWhileItWaits(t *testing.T, new New) {
	var accepted atomic.Int64
	_, l := start(t, new, relay.Config{MaxFDs: 6}, balance(backend(t, func(c *net.TCPConn) { accepted.Add(1); echo(c) })))
	first := dial(t, l)
	roundTrip(t, first, "the only one there is room for")
	for range 20 {
		conn := dial(t, l)
		conn.SetLinger(0)
		conn.Close()
	}
	eventually(t, func() bool { return l.Stats().FDWaits == 1 }, "one to wait")
	first.Close()
	roundTrip(t, dial(t, l), "after them")
	assert.EqualValues(t, 2, accepted.Load())
	assert.Positive(t, l.Stats().Abandoned)
}

// A listener opens also when connections have every descriptor, and there are never so many listeners that nothing is
// left for connections.
func testListenersAndConnectionsShare(t *testing.T, new New) {
	engine, listen := new(relay.Config{MaxFDs: 24}) // 18 for TCP: 4 listeners at most
	defer func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		engine.Shutdown(ctx)
	}()
	b := balance(backend(t, echo))
	addr := netip.MustParseAddr("127.0.0.1")
	first := listenAnywhere(t, listen, addr, b)
	first.Serve()
	var conns []net.Conn
	for range 9 {
		conns = append(conns, dial(t, first))
	}
	eventually(t, func() bool { return first.Stats().FDWaits == 1 && first.Stats().Connected == 8 }, "the budget to be spent")

	second := listenAnywhere(t, listen, addr, b)
	second.Serve()
	waiting := dial(t, second)
	for _, c := range conns[:4] {
		c.Close()
	}
	roundTrip(t, waiting, "its turn comes")

	listenAnywhere(t, listen, addr, b)
	listenAnywhere(t, listen, addr, b)
	_, err := listen(netip.AddrPortFrom(addr, 65000), "one too many", b)
	require.ErrorContains(t, err, "raise it")
	for range 50 { // what is closed is given back
		require.NoError(t, second.Close())
		second = listenAnywhere(t, listen, addr, b)
		_, err := listen(first.Addr(), "taken", b)
		require.Error(t, err)
	}
	for _, c := range conns {
		c.Close()
	}
}

// Neither a refusing backend nor a lone silent one makes a storm of dials.
func testPatienceGrows(t *testing.T, new New) {
	silent, _ := silentBackend(t)
	b := balance(silent)
	_, l := start(t, new, relay.Config{TryTimeout: 20 * time.Millisecond, DialTimeout: time.Second}, b)
	expectReset(t, l) // and the budget ends it
	assert.LessOrEqual(t, len(b.picked()), 7, "20, 40, 80, 160, 320, 640 ms")
}
