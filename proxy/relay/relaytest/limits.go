package relaytest

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/relay"
)

// limited starts a listener over b with a limit.
func limited(t *testing.T, new New, b *balancer, connections, queue int, timeout time.Duration) (Listener, *relay.Limit) {
	_, l := start(t, new, relay.Config{}, b)
	limit := &relay.Limit{}
	limit.Set(connections, queue, timeout)
	l.Configure(relay.Settings{Limit: limit})
	return l, limit
}

// inTurn connects clients one after the other to a new listener.
func inTurn(t *testing.T, l Listener, n int) (conns []*net.TCPConn) {
	t.Helper()
	for i := range n {
		conns = append(conns, dial(t, l))
		eventually(t, func() bool { s := l.Stats(); return s.Connected+s.Queued == uint64(i+1) }, "its connection or place in the queue")
	}
	return conns
}

func testLimitRefuses(t *testing.T, new New) {
	l, _ := limited(t, new, balance(backend(t, echo)), 2, 0, 0)
	for range 3 {
		first, second := dial(t, l), dial(t, l)
		roundTrip(t, first, "one")
		roundTrip(t, second, "two")
		before := l.Stats().Limited
		expectReset(t, l)
		eventually(t, func() bool { return l.Stats().Limited == before+1 }, "the refusal to be counted")
		first.Close()
		second.Close()
		eventually(t, func() bool { return l.Stats().Active == 0 }, "the connections to end")
	}
	assert.Zero(t, l.Stats().Queued)
}

func testLimitIsShared(t *testing.T, new New) {
	limit := &relay.Limit{}
	limit.Set(2, 0, 0)
	var listeners []Listener
	for range 2 {
		_, l := start(t, new, relay.Config{}, balance(backend(t, echo)))
		l.Configure(relay.Settings{Limit: limit})
		listeners = append(listeners, l)
		roundTrip(t, dial(t, l), "one each")
	}
	for _, l := range listeners {
		expectReset(t, l)
	}
}

// Who has waited for the longest is next.
func testQueueInOrder(t *testing.T, new New) {
	const n = 8
	var served atomic.Int32
	l, _ := limited(t, new, balance(backend(t, func(c *net.TCPConn) {
		c.Write([]byte{byte(served.Add(1))})
		io.Copy(io.Discard, c)
	})), 1, n, time.Hour)
	conns := inTurn(t, l, n)
	for i, conn := range conns {
		got := make([]byte, 1)
		_, err := io.ReadFull(conn, got)
		require.NoError(t, err)
		assert.EqualValues(t, i+1, got[0])
		conn.Close()
	}
	assert.EqualValues(t, n, l.Stats().Connected)
}

func testQueueTimeout(t *testing.T, new New) {
	engine, l := start(t, new, relay.Config{}, balance(backend(t, echo)))
	limit := &relay.Limit{}
	limit.Set(1, 2, time.Hour)
	l.Configure(relay.Settings{Limit: limit})
	live := dial(t, l)
	roundTrip(t, live, "the only one")
	waiting := dial(t, l)
	eventually(t, func() bool { return l.Stats().Queued == 1 }, "the wait")
	engine.Advance(59 * time.Minute)
	assert.Zero(t, l.Stats().QueueTimeouts)
	engine.Advance(time.Minute)
	_, err := waiting.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	s := l.Stats()
	assert.EqualValues(t, 1, s.QueueTimeouts)
	assert.EqualValues(t, 1, s.Limited)
	roundTrip(t, live, "goes on")
	live.Close()
	roundTrip(t, dial(t, l), "nobody has the slot")
}

// A client that leaves the queue takes no slot with it.
func testQueueLeft(t *testing.T, new New) {
	l, _ := limited(t, new, balance(backend(t, echo)), 1, 1, time.Hour)
	live := dial(t, l)
	roundTrip(t, live, "the only one")
	for i := range 5 {
		conn := dial(t, l)
		eventually(t, func() bool { return l.Stats().Queued == uint64(i+1) }, "the wait")
		conn.SetLinger(0)
		conn.Close()
		eventually(t, func() bool { return l.Stats().Abandoned == uint64(i+1) }, "it to leave")
	}
	waiting := dial(t, l)
	live.Close()
	roundTrip(t, waiting, "its turn")
}

// Backends have limits, too.
func testQueueForABackend(t *testing.T, new New) {
	b := balance(backend(t, echo), backend(t, echo))
	b.limit = 1
	l, _ := limited(t, new, b, 0, 3, time.Hour)
	conns := inTurn(t, l, 5)
	assert.EqualValues(t, 2, l.Stats().Connected)
	expectReset(t, l)
	for i, conn := range conns {
		roundTrip(t, conn, "its turn")
		assert.LessOrEqual(t, l.Stats().Connected, uint64(i+2), "in order")
		conn.Close()
	}
	assert.EqualValues(t, 1, l.Stats().Limited)

	eventually(t, func() bool { return l.Stats().Active == 0 }, "the connections to end")
	_, unqueued := start(t, new, relay.Config{}, b)
	first, second := dial(t, unqueued), dial(t, unqueued)
	roundTrip(t, first, "one")
	roundTrip(t, second, "two")
	expectReset(t, unqueued)
	eventually(t, func() bool { return unqueued.Stats().Limited == 1 }, "the refusal to be counted")
}

func testQueueCut(t *testing.T, new New) {
	b := balance(backend(t, echo))
	b.limit = 1
	engine, l := start(t, new, relay.Config{}, b)
	limit := &relay.Limit{}
	limit.Set(2, 5, time.Hour)
	l.Configure(relay.Settings{Limit: limit})
	for range 5 { // one served, one waits for the backend, and three for a slot
		dial(t, l)
	}
	eventually(t, func() bool { return l.Stats().Queued == 4 }, "the queue")
	assert.Equal(t, 5, shutDown(engine))
}

func testLimitChanges(t *testing.T, new New) {
	l, limit := limited(t, new, balance(backend(t, echo)), 1, 9, time.Hour)
	conns := inTurn(t, l, 3)
	roundTrip(t, conns[0], "one")
	limit.Set(2, 9, time.Hour)
	roundTrip(t, conns[1], "two")
	limit.Set(0, 9, time.Hour)
	roundTrip(t, conns[2], "no limit")
	limit.Set(1, 0, 0)
	for _, conn := range conns {
		roundTrip(t, conn, "they stay")
	}
	expectReset(t, l)
}

// One Service's clients, however many, take nothing from another's once they are limited.
func testLimitedFlood(t *testing.T, new New) {
	engine, listen := new(relay.Config{MaxFDs: 80}) // 60 for TCP: 28 connections beside two listeners
	defer shutDown(engine)
	addr := netip.MustParseAddr("127.0.0.1")
	flooded, other := listenAnywhere(t, listen, addr, balance(backend(t, echo))), listenAnywhere(t, listen, addr, balance(backend(t, echo)))
	limit := &relay.Limit{}
	limit.Set(5, 5, time.Hour)
	flooded.Configure(relay.Settings{Limit: limit})
	flooded.Serve()
	other.Serve()
	for range 100 {
		conn, err := net.Dial("tcp", flooded.Addr().String())
		if err == nil {
			t.Cleanup(func() { conn.Close() })
		}
	}
	for range 5 {
		roundTrip(t, dial(t, other), "beside the flood")
	}
	eventually(t, func() bool { return flooded.Stats().Accepted == 100 }, "the flood to be dealt with")
	s := flooded.Stats()
	assert.EqualValues(t, 5, s.Queued)
	assert.EqualValues(t, 90, s.Limited)
	assert.Zero(t, s.FDWaits+other.Stats().FDWaits)
}

// Nobody is forgotten, and never are there more than there may be.
func testLimitUnderChurn(t *testing.T, new New) { churnLimited(t, new, false) }

// Clients that leave, wherever they are by then, take no slot with them.
func testLimitUnderLeavers(t *testing.T, new New) { churnLimited(t, new, true) }

func churnLimited(t *testing.T, new New, leavers bool) {
	const clients, rounds = 16, 30
	var inside, most atomic.Int32
	serve := func(c *net.TCPConn) {
		n := inside.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		inside.Add(-1)
		if err == nil {
			c.Write([]byte("x"))
			io.Copy(io.Discard, c)
		}
	}
	b := balance(backend(t, serve), backend(t, serve))
	b.limit = 3
	l, _ := limited(t, new, b, 5, clients*rounds, time.Hour)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for i := range rounds {
				conn, err := net.Dial("tcp", l.Addr().String())
				if !assert.NoError(t, err) {
					return
				}
				conn.SetDeadline(time.Now().Add(patience))
				if leavers && i%3 > 0 {
					conn.(*net.TCPConn).SetLinger(0)
					conn.Close()
					continue
				}
				conn.Write([]byte("x"))
				_, err = io.ReadFull(conn, make([]byte, 1))
				assert.NoError(t, err)
				conn.Close()
			}
		})
	}
	wg.Wait()
	assert.Positive(t, l.Stats().Queued)
	assert.Zero(t, l.Stats().Limited)
	eventually(t, func() bool { return l.Stats().Active == 0 }, "the connections to end")
	for range 5 { // no slot was lost
		roundTrip(t, dial(t, l), "x")
	}
	if !leavers { // of whom the backend hears late
		assert.LessOrEqual(t, most.Load(), int32(5))
	}
}

// Only the time in the queue counts, not that between two waits.
func testQueueTimeoutOfTwoWaits(t *testing.T, new New) {
	leave := make(chan struct{})
	var served atomic.Int32
	first := backend(t, func(c *net.TCPConn) {
		if served.Add(1) == 2 {
			<-leave
			return
		}
		echo(c)
	})
	b := balance(first, backend(t, echo))
	b.limit = 1
	engine, l := start(t, new, relay.Config{}, b)
	limit := &relay.Limit{}
	limit.Set(0, 9, time.Hour)
	l.Configure(relay.Settings{Limit: limit})
	conns := []net.Conn{dial(t, l)}
	roundTrip(t, conns[0], "at the first")
	conns = append(conns, dial(t, l))
	roundTrip(t, conns[1], "at the second")
	waiting := dial(t, l)
	eventually(t, func() bool { return limit.Status().Waiting == 1 }, "the wait")
	engine.Advance(40 * time.Minute)
	conns[0].Close()
	eventually(t, func() bool { return l.Stats().Connected == 3 }, "its turn")
	engine.Advance(40 * time.Minute)
	close(leave)
	eventually(t, func() bool { return limit.Status().Waiting == 1 }, "the other wait")
	engine.Advance(19 * time.Minute)
	assert.Equal(t, 1, limit.Status().Waiting)
	engine.Advance(time.Minute)
	_, err := waiting.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "as its backend has left it")
	eventually(t, func() bool { return limit.Status().Waiting == 0 }, "it to leave the queue")
}

// Backends that refuse, are silent, or leave early take no slot with them either, and no place of a backend's: each client
// that stays is served.
func testLimitUnderFaults(t *testing.T, new New) {
	const clients, rounds = 16, 15
	silent, _ := silentBackend(t)
	b := balance(silent, refused(t), backend(t, earlyEnds["FIN"].serve), backend(t, earlyEnds["reset"].serve), backend(t, func(c *net.TCPConn) {
		c.Write([]byte("x")) // first, as a client's bytes would bind it to a backend that leaves
		echo(c)
	}))
	b.limit, b.hedge = 2, soon
	_, l := start(t, new, relay.Config{TryTimeout: 2 * soon}, b)
	limit := &relay.Limit{}
	limit.Set(8, clients*rounds, time.Hour)
	l.Configure(relay.Settings{Limit: limit})
	var wg sync.WaitGroup
	for who := range clients {
		wg.Go(func() {
			for i := range rounds {
				conn, err := net.Dial("tcp", l.Addr().String())
				if !assert.NoError(t, err) {
					return
				}
				conn.SetDeadline(time.Now().Add(patience))
				if (who+i)%3 == 0 { // it leaves, wherever it is by then
					conn.(*net.TCPConn).SetLinger(0)
					conn.Close()
					continue
				}
				_, err = io.ReadFull(conn, make([]byte, 1))
				assert.NoError(t, err)
				conn.Close()
			}
		})
	}
	wg.Wait()
	eventually(t, func() bool { s := limit.Status(); return s.Used == 0 && s.Waiting == 0 && b.balanced() }, "all to be let go of")
	assert.Zero(t, l.Stats().Limited)
	assert.Zero(t, l.Stats().Failed)
}
