package relaytest

import (
	"context"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
	"redial/proxy/relay"
)

// A connection that finds the set empty, because the listener has not been closed yet.
func testNoBackend(t *testing.T, new New) {
	_, l := start(t, new, relay.Config{}, balance())
	expectReset(t, l)
	eventually(t, func() bool { return l.Stats().NoBackend == 1 }, "the failure to be counted")
}

// Refused by the kernel, never accepted and dropped; and back at once.
func testRefusing(t *testing.T, new New) {
	_, l := start(t, new, relay.Config{}, balance(backend(t, echo)))
	live := dial(t, l)
	roundTrip(t, live, "before")
	for range 20 {
		require.NoError(t, l.SetOpen(false))
		_, err := net.Dial("tcp", l.Addr().String())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		roundTrip(t, live, "a live connection goes on")
		require.NoError(t, l.SetOpen(true))
		conn := dial(t, l)
		roundTrip(t, conn, "open again")
		conn.Close()
	}
	require.NoError(t, l.SetOpen(true), "already open")
	assert.EqualValues(t, 21, l.Stats().Accepted)
	assert.Zero(t, l.Stats().AcceptErrors)
}

func testRefusingKeepsPort(t *testing.T, new New) {
	_, l := start(t, new, relay.Config{}, balance(backend(t, echo)))
	conn := dial(t, l) // its socket has the same local port
	roundTrip(t, conn, "before")
	require.NoError(t, l.SetOpen(false))
	_, err := net.Listen("tcp", l.Addr().String())
	require.ErrorIs(t, err, syscall.EADDRINUSE, "the port stays ours")
	require.NoError(t, l.SetOpen(true))
	roundTrip(t, dial(t, l), "after")
}

func testCloseKeepsLive(t *testing.T, new New) {
	_, l := start(t, new, relay.Config{}, balance(backend(t, echo)))
	conn := dial(t, l)
	roundTrip(t, conn, "before")
	require.NoError(t, l.Close())
	require.NoError(t, l.Close(), "twice")
	_, err := net.Dial("tcp", l.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	roundTrip(t, conn, "after")
	assert.NoError(t, l.SetOpen(true), "no effect on a closed listener")
	_, err = net.Dial("tcp", l.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func testShutdownWaits(t *testing.T, new New) {
	engine, l := start(t, new, relay.Config{}, balance(backend(t, echo)))
	conn := dial(t, l)
	roundTrip(t, conn, "before")
	done := make(chan struct{})
	go func() {
		assert.Zero(t, engine.Shutdown(context.Background()))
		close(done)
	}()
	eventually(t, func() bool {
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			c.Close()
		}
		return err != nil
	}, "new connections to be refused")
	roundTrip(t, conn, "a live connection goes on")
	select {
	case <-done:
		require.FailNow(t, "shut down with a connection alive")
	default:
	}
	conn.Close()
	waitFor(t, done, "the end of the shutdown")
}

func testShutdownCuts(t *testing.T, new New) {
	engine, l := start(t, new, relay.Config{}, balance(backend(t, echo)))
	conn, later := dial(t, l), dial(t, l)
	roundTrip(t, conn, "before")
	roundTrip(t, later, "before")
	require.NoError(t, l.Close(), "connections of a listener that closed earlier are not forgotten")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.Equal(t, 2, engine.Shutdown(ctx))
	_, err := conn.Read(make([]byte, 1))
	assert.ErrorIs(t, err, syscall.ECONNRESET)
}

func testShutdownCutsDials(t *testing.T, new New) {
	silent, _ := silentBackend(t)
	engine, l := start(t, new, relay.Config{}, balance(silent))
	conn := dial(t, l)
	eventually(t, func() bool { return l.Stats().Active == 1 }, "the dial")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.Equal(t, 1, engine.Shutdown(ctx))
	_, err := conn.Read(make([]byte, 1))
	assert.ErrorIs(t, err, syscall.ECONNRESET)
}

// At the limit connections wait their turn in the queue and are then served.
func testFDBudget(t *testing.T, new New) {
	_, l := start(t, new, relay.Config{MaxFDs: 12}, balance(backend(t, echo)))
	var conns []*net.TCPConn
	for range 10 {
		conns = append(conns, dial(t, l))
	}
	eventually(t, func() bool { return l.Stats().Connected == 3 && l.Stats().FDWaits == 1 }, "three served, one waiting")
	for i, conn := range conns {
		roundTrip(t, conn, "my turn")
		conn.Close()
		if i == 0 {
			assert.LessOrEqual(t, l.Stats().Connected, uint64(4))
		}
	}
	assert.Zero(t, l.Stats().Failed)
}

// The process runs out of descriptors in spite of the budget, as when something else leaks them. No loop ends, nobody
// is lost, and all is well when there are some again.
func testFDExhaustion(t *testing.T, new New) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, _ *lab.Host) {
		b := balance(backend(t, echo))
		_, l := start(t, new, relay.Config{MaxFDs: 1 << 20}, b)
		roundTrip(t, dial(t, l), "before")
		waiting := dial(t, l)
		roundTrip(t, waiting, "served")

		limit := openFDs(t) + 20
		lim := syscall.Rlimit{Cur: uint64(limit), Max: uint64(limit)}
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim))
		// A raw socket per client and no Go runtime in between, so that this side can hold the very last descriptors.
		var fds []int
		for {
			fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
			if err != nil {
				break
			}
			fds = append(fds, fd)
		}
		addr := &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: int(l.Addr().Port())}
		clients := fds[:4]
		for _, fd := range clients {
			require.NoError(t, syscall.Connect(fd, addr), "the kernel accepts")
		}
		eventually(t, func() bool { return l.Stats().AcceptErrors > 0 }, "accept(2) to fail")
		for _, fd := range fds[4:] {
			syscall.Close(fd)
		}
		eventually(t, func() bool { return l.Stats().Connected == 6 }, "all to be served")
		for _, fd := range clients {
			_, err := syscall.Write(fd, []byte("late"))
			require.NoError(t, err)
			got := make([]byte, 4)
			_, err = syscall.Read(fd, got)
			require.NoError(t, err)
			assert.Equal(t, "late", string(got))
			syscall.Close(fd)
		}
		assert.Zero(t, l.Stats().Failed)
		assert.Empty(t, b.failures(), "a shortage of our own is not the backend's failure")
	})
}

func testPanicIsContained(t *testing.T, new New) {
	b := balance(backend(t, echo))
	_, l := start(t, new, relay.Config{}, b)
	live := dial(t, l)
	roundTrip(t, live, "before")
	panicked := false
	b.mu.Lock()
	b.onPick = func() {
		if !panicked {
			panicked = true
			panic("a bug in the balancer")
		}
	}
	b.mu.Unlock()
	expectReset(t, l)
	roundTrip(t, live, "after")
	roundTrip(t, dial(t, l), "and the next")
}
