package relaytest

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
	"redial/proxy/relay"
)

func testSessionsAreBounded(t *testing.T, new NewUDP) {
	a, _ := udpBackend(t, "127.0.0.1:0", same)
	engine, listen := new(relay.Config{MaxFDs: 80}) // 20 sessions, 10 each
	b, other := balance(a), balance(a)
	l := serveUDP(t, engine, listen, b, "127.0.0.1")
	m := serveUDP(t, engine, listen, other, "127.0.0.1")
	keep := udpClient(t, m)
	exchange(t, keep, "x")
	busy := udpClient(t, l)
	for range 50 {
		exchange(t, udpClient(t, l), "x")
		exchange(t, busy, "x")
	}
	assert.EqualValues(t, 10, l.Stats().Active)
	assert.EqualValues(t, 51-10, l.Stats().Evicted)
	assert.EqualValues(t, 51, l.Stats().Accepted, "the one that is used is not the one that goes")
	assert.EqualValues(t, 1, m.Stats().Active, "another listener's sessions are its own")
	assert.Zero(t, m.Stats().Evicted)
}

// All that can be sent at one listener leaves another's answers undisturbed.
func testFloodLeavesOthersAlone(t *testing.T, new NewUDP) {
	a, _ := udpBackend(t, "127.0.0.1:0", func(net.Addr, []byte) []byte { return nil })
	c, _ := udpBackend(t, "127.0.0.1:0", same)
	engine, listen := new(relay.Config{UDPTimeout: time.Hour})
	// As many listeners as make two of them share a loop.
	flooded := serveUDP(t, engine, listen, balance(a), "127.0.0.1")
	var others []*net.UDPConn
	for range 4 {
		others = append(others, udpClient(t, serveUDP(t, engine, listen, balance(c), "127.0.0.1")))
	}
	idle := udpClient(t, flooded)
	idle.Write([]byte("x"))
	eventually(t, func() bool { return flooded.Stats().Active == 1 }, "a session")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		conn := udpClient(t, flooded)
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					conn.Write([]byte("noise"))
				}
			}
		})
	}
	for i := range uint64(2) {
		eventually(t, func() bool { return flooded.Stats().DatagramsIn > (i+1)*1000 }, "the flood")
		engine.Advance(40 * time.Minute)
	}
	eventually(t, func() bool { return flooded.Stats().Expired > 0 }, "an idle session to end in spite of it")
	for range 10 {
		for _, conn := range others {
			assert.Equal(t, "x", exchange(t, conn, "x"))
		}
	}
	close(stop)
	wg.Wait()
}

// The process has no descriptor left. The loop goes on, and new clients are served at the expense of idle ones.
func testUDPFDExhaustion(t *testing.T, new NewUDP) {
	lab.Run(t, func(t *testing.T, _ *lab.Host) {
		a, _ := udpBackend(t, "127.0.0.1:0", same)
		b := balance(a)
		_, l := startUDP(t, new, relay.Config{MaxFDs: 1 << 20}, b)
		idle, last := udpClient(t, l), udpClient(t, l)
		exchange(t, idle, "x")
		limit := uint64(openFDs(t) + 5)
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: limit}))
		var files []*os.File
		for {
			f, err := os.Open("/dev/null")
			if err != nil {
				break
			}
			files = append(files, f)
		}
		assert.Equal(t, "y", exchange(t, last, "y"))
		assert.EqualValues(t, 1, l.Stats().Evicted)
		assert.Empty(t, b.failures(), "a shortage of our own is not the backend's failure")
		for _, f := range files {
			f.Close()
		}
		assert.Equal(t, "z", exchange(t, idle, "z"))
	})
}

// What the kernel drops before the loop sees it is counted too.
func testOverflow(t *testing.T, new NewUDP) {
	hold := make(chan struct{})
	a, _ := udpBackend(t, "127.0.0.1:0", same)
	b := balance(a)
	held := make(chan struct{})
	var once sync.Once
	b.onPick = func() { once.Do(func() { close(held); <-hold }) }
	_, l := startUDP(t, new, relay.Config{}, b)
	conn := udpClient(t, l)
	conn.Write([]byte("x"))
	waitFor(t, held, "the loop to be held up")
	big := random(60000)
	for range 2000 { // 120 MB, more than any buffer
		conn.Write(big)
	}
	close(hold)
	eventually(t, func() bool {
		conn.Write([]byte("x")) // its arrival tells of those that did not
		return l.Stats().Overflows > 0
	}, "the loss to be counted")
}

func testCloseAndShutdown(t *testing.T, new NewUDP) {
	a, _ := udpBackend(t, "127.0.0.1:0", same)
	engine, listen := new(relay.Config{})
	l, m := serveUDP(t, engine, listen, balance(a), "127.0.0.1"), serveUDP(t, engine, listen, balance(a), "127.0.0.1")
	c, d := udpClient(t, l), udpClient(t, m)
	exchange(t, c, "x")
	exchange(t, d, "x")
	require.NoError(t, l.Close())
	require.NoError(t, l.Close(), "twice")
	c.Write([]byte("x"))
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	assert.Equal(t, "y", exchange(t, d, "y"))
	engine.Shutdown(context.Background())
	d.Write([]byte("x"))
	_, err = d.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, m.Close(), "after the end")
	m.Retain(nil)
	require.NoError(t, m.SetOpen(false))
	_, err = listen(l.Addr(), "late", balance())
	require.ErrorIs(t, err, relay.ErrShutdown)
}

// Sockets that listen are counted as those of TCP are: they may not take what the rest of the process needs.
func testUDPListenersAreBounded(t *testing.T, new NewUDP) {
	engine, listen := new(relay.Config{MaxFDs: 24}) // 18 for what is not a session: 4 listeners at most
	defer engine.Shutdown(context.Background())
	for range 20 { // what is closed is given back
		var open []UDPListener
		for range 4 {
			var l UDPListener
			listenAnywhere(t, func(addr netip.AddrPort, name string, b relay.Balancer) (_ Listener, err error) {
				l, err = listen(addr, name, b)
				return l, err
			}, netip.MustParseAddr("127.0.0.1"), balance())
			open = append(open, l)
		}
		_, err := listen(netip.MustParseAddrPort("127.0.0.1:65000"), "one too many", balance())
		require.ErrorContains(t, err, "raise it")
		for _, l := range open {
			require.NoError(t, l.Close())
		}
	}
}

// Listeners close while answers are under way, and their descriptors go to others at once. No answer may come out there.
func testRepliesEndWithTheirSocket(t *testing.T, new NewUDP) {
	a, _ := udpBackend(t, "127.0.0.1:0", same)
	engine, listen := new(relay.Config{})
	defer engine.Shutdown(context.Background())
	for range 30 {
		var l UDPListener
		listenAnywhere(t, func(addr netip.AddrPort, name string, b relay.Balancer) (_ Listener, err error) {
			l, err = listen(addr, name, b)
			return l, err
		}, netip.MustParseAddr("127.0.0.1"), balance(a))
		l.Serve()
		conn := udpClient(t, l)
		exchange(t, conn, "x")
		for range 50 {
			conn.Write([]byte("under way"))
		}
		require.NoError(t, l.Close())
		fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_NONBLOCK, 0)
		require.NoError(t, err)
		engineIsIdle := udpClient(t, l)
		engineIsIdle.Write([]byte("x")) // refused: the loop has been round
		engineIsIdle.Read(make([]byte, 1))
		for _, fd := range fds {
			n, err := syscall.Read(fd, make([]byte, 100))
			assert.ErrorIs(t, err, syscall.EAGAIN, "%d bytes came out of somebody else's socket", n)
			syscall.Close(fd)
		}
	}
}
