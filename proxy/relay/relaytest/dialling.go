package relaytest

import (
	"fmt"
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

	"redial/proxy/intercept/lab"
	"redial/proxy/relay"
)

func outQueue(fd int) int {
	n, _ := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	return n
}

// silentBackend is an address where SYNs are dropped: a listener whose accept queue is full. The function returned
// makes it answer, by an echo.
func silentBackend(t *testing.T) (netip.AddrPort, func()) {
	t.Helper()
	fd, addr := bound(t)
	require.NoError(t, unix.Listen(fd, 0))
	filler, err := net.Dial("tcp", addr.String())
	require.NoError(t, err)
	t.Cleanup(func() { filler.Close(); unix.Close(fd) })
	return addr, func() {
		unix.Listen(fd, unix.SOMAXCONN)
	}
}

func testRefusedThenGood(t *testing.T, new New) {
	dead := refused(t)
	b := balance(dead, backend(t, echo))
	_, l := start(t, new, relay.Config{}, b)
	conn := dial(t, l)
	roundTrip(t, conn, "served all the same")
	assert.Equal(t, []netip.AddrPort{dead}, b.failures())
	s := l.Stats()
	assert.EqualValues(t, 1, s.Retried)
	assert.EqualValues(t, 1, s.Retries)
}

// The client hears of it at once, and by a reset; nobody is dialled twice.
func testAllRefused(t *testing.T, new New) {
	backends := []netip.AddrPort{refused(t), refused(t), refused(t)}
	b := balance(backends...)
	_, l := start(t, new, relay.Config{}, b)
	expectReset(t, l)
	assert.ElementsMatch(t, backends, b.picked())
	eventually(t, func() bool { return l.Stats().Failed == 1 }, "the failure to be counted")
}

func testSilentThenGood(t *testing.T, new New) {
	silent, _ := silentBackend(t)
	b := balance(silent, backend(t, echo))
	engine, l := start(t, new, relay.Config{TryTimeout: time.Hour}, b)
	conn := dial(t, l)
	eventually(t, func() bool { return len(b.picked()) == 1 }, "the dial")
	engine.Advance(time.Hour)
	roundTrip(t, conn, "served all the same")
	assert.Equal(t, []netip.AddrPort{silent}, b.failures())
}

// With nobody else to go to, a backend that was silent for a moment is asked again.
func testLoneSilentRecovers(t *testing.T, new New) {
	silent, wake := silentBackend(t)
	b := balance(silent, refused(t))
	_, l := start(t, new, relay.Config{TryTimeout: 20 * time.Millisecond}, b)
	conn := dial(t, l)
	eventually(t, func() bool { return len(b.picked()) >= 3 }, "a second round")
	wake()
	eventually(t, func() bool { return l.Stats().Connected == 1 }, "the connection")
	conn.Close()
	picks := b.picked()
	refusals := 0
	for _, p := range picks {
		if p != silent {
			refusals++
		}
	}
	assert.Equal(t, 1, refusals, "a refusal is final: %v", picks)
}

// A loop that was held up comes to know late, and piece by piece, of the answers that came in time and of those that did
// not.
func testAnswersPastTheBudget(t *testing.T, new New) {
	const clients, budget = 400, 2 * time.Second // the second SYN comes after one
	silent, wake := silentBackend(t)
	b := balance(silent)
	_, l := start(t, new, relay.Config{TryTimeout: time.Hour, DialTimeout: budget}, b)
	for range clients {
		dial(t, l)
	}
	eventually(t, func() bool { return len(b.picked()) == clients }, "the dials")
	over, held := make(chan struct{}), make(chan struct{})
	b.mu.Lock()
	b.backends = []netip.AddrPort{backend(t, echo)}
	b.onPick = sync.OnceFunc(func() { close(held); <-over })
	b.mu.Unlock()
	next := dial(t, l)
	waitFor(t, held, "the loop to be held up")
	wake()
	<-time.After(budget)
	close(over)
	roundTrip(t, next, "and all goes on")
	eventually(t, func() bool { s := l.Stats(); return s.Connected+s.Failed == clients+1 }, "all dials to end")
}

// Connections to the silent backend wait, all the others go through.
func testSilentDoesNotBlock(t *testing.T, new New) {
	silent, _ := silentBackend(t)
	good := backend(t, echo)
	b := balance(silent, good)
	_, l := start(t, new, relay.Config{}, b)
	for range 20 {
		dial(t, l) // every other one stays in its dial
	}
	eventually(t, func() bool { return l.Stats().Connected == 10 }, "the connections to the good backend")
	assert.EqualValues(t, 20, l.Stats().Accepted)
}

// Nobody waits for an answer any more: no further backend is bothered.
func testClientLeaves(t *testing.T, new New) {
	first, _ := silentBackend(t)
	second, _ := silentBackend(t)
	b := balance(first, second)
	engine, l := start(t, new, relay.Config{TryTimeout: time.Hour}, b)
	conn := dial(t, l)
	eventually(t, func() bool { return len(b.picked()) == 1 }, "the dial")
	conn.SetLinger(0)
	conn.Close()
	eventually(t, func() bool { return l.Stats().Abandoned == 1 }, "the connection to be given up")
	engine.Advance(time.Hour)
	assert.Len(t, b.picked(), 1)
}

// A backend that dies after it has received something may have acted on it.
func testNothingRetried(t *testing.T, new New) {
	b := balance(backend(t, func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 1))
		c.SetLinger(0)
	}), backend(t, echo))
	_, l := start(t, new, relay.Config{}, b)
	conn := dial(t, l)
	conn.Write([]byte("charge my card"))
	_, err := io.ReadAll(conn)
	assert.ErrorIs(t, err, syscall.ECONNRESET)
	assert.Len(t, b.picked(), 1)
}

// Rounds in which nobody could be asked add up, and leave backends their time all the same.
func testNoLocalPortForLong(t *testing.T, new New) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		ports := func(first, last int) {
			_, err := node.Output("sh", "-c", fmt.Sprintf("echo %d %d > /proc/sys/net/ipv4/ip_local_port_range", first, last))
			require.NoError(t, err)
		}
		silent, wake := silentBackend(t)
		ports(40000, 40000)
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		require.NoError(t, err)
		defer unix.Close(fd)
		require.ErrorIs(t, unix.Connect(fd, &unix.SockaddrInet4{Addr: silent.Addr().As4(), Port: int(silent.Port())}), unix.EINPROGRESS)
		b := balance(silent)
		engine, l := start(t, new, relay.Config{TryTimeout: time.Hour}, b)
		dial(t, l)
		eventually(t, func() bool { return len(b.picked()) > 0 }, "the first round")
		for len(b.picked()) < 64 { // as many doublings as overflow
			engine.Advance(time.Second)
		}
		ports(40000, 50000)
		engine.Advance(time.Second)
		engine.Advance(time.Second)
		wake() // it answers when the SYN is sent again, after a second
		eventually(t, func() bool { return l.Stats().Connected == 1 }, "the connection")
		assert.Empty(t, b.failures())
	})
}
