package relaytest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy/relay"
)

// What an event loop can get wrong: events that are taken for another socket's, events that are waited for in vain, and
// one connection that stands in the way of the others.

// Descriptors and records are used again at once, while both peers of a connection end it in all ways there are. Each
// connection gets its own bytes.
func testNobodyElsesBytes(t *testing.T, new New) {
	const clients, rounds = 16, 60
	_, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) {
		b := make([]byte, 16)
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		c.Write(b)
		switch b[0] % 3 {
		case 0:
			c.SetLinger(0)
		case 1:
			io.Copy(io.Discard, c)
		}
	}), refused(t)))
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 0))
			for range rounds {
				conn, err := net.Dial("tcp", l.Addr().String())
				if !assert.NoError(t, err) {
					return
				}
				conn.SetDeadline(time.Now().Add(patience))
				want, got := make([]byte, 16), make([]byte, 16)
				binary.NativeEndian.PutUint64(want, random.Uint64())
				binary.NativeEndian.PutUint64(want[8:], random.Uint64())
				conn.Write(want)
				if want[1]%4 != 0 { // otherwise it leaves without its answer
					n, err := io.ReadFull(conn, got)
					assert.Equal(t, want[:n], got[:n])
					assert.True(t, err == nil || want[0]%3 == 0, "%v", err)
				}
				if want[1]%2 == 0 {
					conn.(*net.TCPConn).SetLinger(0)
				}
				conn.Close()
			}
		})
	}
	wg.Wait()
	eventually(t, func() bool { return l.Stats().Active == 0 }, "the connections to end")
}

// Messages that fill buffers and pipes exactly, or just not, each answered before the next: whoever waits for an event
// that has come already waits for ever.
func testNoLostWakeUp(t *testing.T, new New) {
	_, l := start(t, new, relay.Config{}, balance(backend(t, echo)))
	conn := dial(t, l)
	for _, size := range []int{1, 1 << 12, 1<<16 - 1, 1 << 16, 1<<16 + 1, 1 << 17, 3 << 16, 1<<18 - 1, 1 << 18, 1 << 19, 1<<19 + 1, 1 << 20, 1<<21 + 7, 1} {
		sent := random(size)
		for range 3 {
			go conn.Write(sent)
			got := make([]byte, size)
			_, err := io.ReadFull(conn, got)
			require.NoError(t, err, "%d bytes", size)
			require.True(t, bytes.Equal(sent, got), "%d bytes", size)
		}
	}
	// The end comes together with bytes that fill a buffer exactly.
	conn.Write(random(1 << 16))
	conn.CloseWrite()
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Len(t, got, 1<<16)
}

// A read stops short of urgent data, with more behind it.
func testUrgentData(t *testing.T, new New) {
	const before, after = "before", "after the mark"
	received := make(chan string, 1)
	_, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) {
		b := make([]byte, len(before)+len(after))
		n, _ := io.ReadFull(c, b)
		received <- string(b[:n])
	})))
	conn := dial(t, l)
	raw, err := conn.SyscallConn()
	require.NoError(t, err)
	for _, part := range []struct {
		text  string
		flags int
	}{{before, 0}, {"!", unix.MSG_OOB}, {after, 0}} {
		require.NoError(t, raw.Write(func(fd uintptr) bool {
			err = unix.Sendto(int(fd), []byte(part.text), part.flags, nil)
			return true
		}))
		require.NoError(t, err)
	}
	select {
	case got := <-received:
		assert.Equal(t, before+after, got, "without the urgent byte, which is out of band")
	case <-time.After(patience):
		require.FailNow(t, "bytes behind urgent data do not arrive")
	}
}

// faulty panics where connections have gone well so far.
type faulty struct {
	*balancer
	mu              sync.Mutex
	report, release bool
}

func (f *faulty) Report(client netip.Addr, a netip.AddrPort, took time.Duration, err error) {
	f.balancer.Report(client, a, took, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.report {
		f.report = false
		panic("a bug in Report")
	}
}

func (f *faulty) Release(a netip.AddrPort) {
	f.balancer.Release(a)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.release {
		panic("a bug in Release")
	}
}

func testPanicsEndOneConnection(t *testing.T, new New) {
	engine, listen := new(relay.Config{})
	b := &faulty{balancer: balance(backend(t, echo)), release: true}
	l := listenAnywhere(t, listen, netip.MustParseAddr("127.0.0.1"), b)
	l.Serve()
	live := dial(t, l)
	roundTrip(t, live, "before")
	b.mu.Lock()
	b.report = true
	b.mu.Unlock()
	expectReset(t, l)
	roundTrip(t, live, "after a fault in Report")
	for range 3 {
		conn := dial(t, l)
		roundTrip(t, conn, "served")
		conn.Close()
	}
	eventually(t, func() bool { return l.Stats().Active == 1 }, "connections to end in spite of faults in Release")
	roundTrip(t, live, "after faults in Release")
	dial(t, l)
	assert.GreaterOrEqual(t, shutDown(engine), 1, "cutting goes on after a fault")
	assert.Zero(t, l.Stats().Active)
	assert.True(t, b.balanced())
}

// Its successor has the port, the descriptor's number and the loop.
func testReopened(t *testing.T, new New) {
	engine, listen := new(relay.Config{})
	defer shutDown(engine)
	b := balance(backend(t, echo))
	l := listenAnywhere(t, listen, netip.MustParseAddr("127.0.0.1"), b)
	l.Serve()
	addr := l.Addr()
	ending := make(chan struct{})
	var clients sync.WaitGroup
	end := sync.OnceFunc(func() { close(ending); clients.Wait() })
	defer end()
	for range 4 { // in every state a connection can be in
		clients.Go(func() {
			for {
				select {
				case <-ending:
					return
				default:
				}
				if conn, err := net.Dial("tcp", addr.String()); err == nil {
					conn.SetDeadline(time.Now().Add(patience))
					conn.Write([]byte("x"))
					conn.Read(make([]byte, 1))
					conn.Close()
				}
			}
		})
	}
	for range 100 {
		require.NoError(t, l.Close())
		var err error
		l, err = listen(addr, "default/web:http/TCP", b)
		require.NoError(t, err)
		l.Serve()
	}
	end()
	roundTrip(t, dial(t, l), "served by the last one")
}

// Each listener serves its own backend, costs no goroutine, and goes without leaving a trace in the others.
func testManyListeners(t *testing.T, new New) {
	const n = 200
	engine, listen := new(relay.Config{})
	defer shutDown(engine)
	open := func(i int) Listener {
		name := fmt.Sprintf("%4d", i)
		l := listenAnywhere(t, listen, netip.MustParseAddr("127.0.0.1"), balance(backend(t, func(c *net.TCPConn) { c.Write([]byte(name)) })))
		l.Serve()
		return l
	}
	listeners := []Listener{open(0)}
	before := runtime.NumGoroutine()
	for i := range n {
		listeners = append(listeners, open(i+1))
	}
	assert.LessOrEqual(t, runtime.NumGoroutine()-before, n, "but for the backends' own")
	check := func(i int) {
		got, err := io.ReadAll(dial(t, listeners[i]))
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%4d", i), string(got))
	}
	for i := range listeners {
		check(i)
	}
	for i := 0; i < n; i += 2 {
		require.NoError(t, listeners[i].Close())
	}
	for i := 1; i < n; i += 2 {
		check(i)
	}
}

// More clients at one moment than are accepted at a time.
func testBurst(t *testing.T, new New) {
	const n = 300
	_, l := start(t, new, relay.Config{}, balance(backend(t, echo)))
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			conn, err := net.Dial("tcp", l.Addr().String())
			if !assert.NoError(t, err) {
				return
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(patience))
			conn.Write([]byte("x"))
			_, err = io.ReadFull(conn, make([]byte, 1))
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	s := l.Stats()
	assert.EqualValues(t, n, s.Accepted)
	assert.EqualValues(t, n, s.Connected)
	assert.Zero(t, s.AcceptErrors)
}

// transfer sends more than buffers hold through an echo.
func transfer(t *testing.T, conn net.Conn) {
	t.Helper()
	sent := random(4 << 20)
	go conn.Write(sent)
	got := make([]byte, len(sent))
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, sha256.Sum256(sent), sha256.Sum256(got))
}

// Streams whose receivers have stopped reading, with buffers and pipes full, hold up nobody. Cutting them leaves nothing
// behind that others could receive.
func testStuckStreams(t *testing.T, new New) {
	const stuck = 8
	var filling sync.WaitGroup
	engine, l := start(t, new, relay.Config{}, balance(backend(t, echo)))
	var conns []*net.TCPConn
	for range stuck {
		conn := dial(t, l)
		conns = append(conns, conn)
		filling.Go(func() { fill(conn) })
	}
	filling.Wait()
	other := dial(t, l)
	transfer(t, other)
	for _, c := range conns {
		c.SetLinger(0)
		c.Close()
	}
	transfer(t, other)
	eventually(t, func() bool {
		engine.Advance(time.Minute) // it looks whether anybody takes anything
		return l.Stats().Active == 1
	}, "the stuck streams to end")
	transfer(t, other)
}

// Streams that have come to rest hold no descriptors but their sockets.
func testRestingStreamsCostTwoFDs(t *testing.T, new New) {
	n := 4 * runtime.GOMAXPROCS(0)
	_, l := start(t, new, relay.Config{}, balance(backend(t, echo)))
	transfer(t, dial(t, l))
	before := openFDs(t)
	for range n {
		transfer(t, dial(t, l))
	}
	eventually(t, func() bool {
		// The client's, the relay's two and the backend's socket of each; a few pipes are kept to be used again.
		return openFDs(t)-before <= n*4+runtime.GOMAXPROCS(0)*8
	}, "the pipes to be given back")
}

// A client that resets its connection ends the search for a backend at once.
func testClientResetsWhileDialling(t *testing.T, new New) {
	silent, _ := silentBackend(t)
	b := balance(silent)
	_, l := start(t, new, relay.Config{}, b)
	conn := dial(t, l)
	eventually(t, func() bool { return len(b.picked()) == 1 }, "the dial")
	conn.SetLinger(0)
	conn.Close()
	eventually(t, func() bool { return l.Stats().Abandoned == 1 }, "the search to be given up")
	assert.Empty(t, b.failures(), "the backend had no time to answer")
}

// What a client has sent before it reset its connection reaches a backend that answers only then, and so does the reset.
func testClientSendsAndResetsWhileDialling(t *testing.T, new New) {
	t.Parallel()
	silent, wake := silentBackend(t)
	b := balance(silent)
	_, l := start(t, new, relay.Config{}, b)
	conn := dial(t, l)
	eventually(t, func() bool { return len(b.picked()) == 1 }, "the dial")
	conn.Write([]byte("last words"))
	for unsentBytes(conn) > 0 {
		time.Sleep(time.Millisecond)
	}
	conn.SetLinger(0)
	conn.Close()
	wake() // it answers when the SYN is sent again, after a second
	eventually(t, func() bool { return l.Stats().Resets == 1 }, "the connection to end")
	assert.EqualValues(t, len("last words"), l.Stats().BytesIn)
}

// shutDown cuts what is left.
func shutDown(engine Engine) int {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return engine.Shutdown(ctx)
}
