package relaytest

import (
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
	"redial/proxy/relay"
)

func refusedUDP(t *testing.T) netip.AddrPort {
	t.Helper()
	a, stop := udpBackend(t, "127.0.0.1:0", same)
	stop()
	return a
}

// The very datagram that was refused reaches the next backend, without the client's doing.
func testRefusedMoves(t *testing.T, new NewUDP) {
	good, _ := udpBackend(t, "127.0.0.1:0", named("good"))
	b := balance(refusedUDP(t), refusedUDP(t), good)
	_, l := startUDP(t, new, relay.Config{}, b)
	for range 20 {
		assert.Equal(t, "good:once", exchange(t, udpClient(t, l), "once"))
	}
	assert.Zero(t, l.Stats().Dropped)
	assert.Greater(t, l.Stats().Retried, uint64(0))
}

// A backend that comes back within moments is asked again on the same session.
func testBackendRestarts(t *testing.T, new NewUDP) {
	a, stop := udpBackend(t, "127.0.0.1:0", named("old"))
	_, l := startUDP(t, new, relay.Config{}, balance(a))
	conn := udpClient(t, l)
	assert.Equal(t, "old:x", exchange(t, conn, "x"))
	stop()
	conn.Write([]byte("into the void"))
	eventually(t, func() bool { return l.Stats().Dropped == 1 }, "the datagram to be given up")
	udpBackend(t, a.String(), named("new"))
	assert.Equal(t, "new:y", exchange(t, conn, "y"))
}

// In the middle of a session, several datagrams later: none of them is lost to the dead backend's error.
func testBackendDiesInSession(t *testing.T, new NewUDP) {
	a, stop := udpBackend(t, "127.0.0.1:0", named("a"))
	b, _ := udpBackend(t, "127.0.0.1:0", named("b"))
	_, l := startUDP(t, new, relay.Config{}, balance(a, b))
	conn := udpClient(t, l)
	for range 3 {
		require.Equal(t, "a:x", exchange(t, conn, "x"))
	}
	stop()
	for range 3 {
		require.Equal(t, "b:x", exchange(t, conn, "x"))
	}
	assert.Zero(t, l.Stats().Dropped)
}

func testAllRefuse(t *testing.T, new NewUDP) {
	backends := []netip.AddrPort{refusedUDP(t), refusedUDP(t)}
	b := balance(backends...)
	_, l := startUDP(t, new, relay.Config{}, b)
	conn := udpClient(t, l)
	conn.Write([]byte("x"))
	eventually(t, func() bool { return l.Stats().Dropped == 1 }, "the datagram to be given up")
	assert.ElementsMatch(t, backends, b.picked(), "each is tried once")
	eventually(t, func() bool { return l.Stats().Active == 0 }, "the session to end")
	good, _ := udpBackend(t, "127.0.0.1:0", named("good"))
	b.mu.Lock()
	b.backends = append(b.backends, good)
	b.mu.Unlock()
	assert.Equal(t, "good:y", exchange(t, conn, "y"), "the loop goes on")
}

// Hosts send one refusal a second. Clients whose datagram got none are helped by that of another.
func testRefusalsAreRare(t *testing.T, new NewUDP) {
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		const clients = 200
		dead, err := node.AddHost("dead", "198.18.1.2/24")
		require.NoError(t, err)
		alive, err := node.AddHost("alive", "198.18.2.2/24")
		require.NoError(t, err)
		_ = dead // answers by ICMP
		var conn net.PacketConn
		require.NoError(t, alive.Do(func() (err error) { conn, err = net.ListenPacket("udp", "198.18.2.2:53"); return err }))
		good, _ := serveDatagrams(t, conn, same)
		b := balance(netip.MustParseAddrPort("198.18.1.2:53"), good)
		_, l := startUDP(t, new, relay.Config{}, b)
		var conns []*net.UDPConn
		for range clients {
			conns = append(conns, udpClient(t, l))
		}
		var wg sync.WaitGroup
		for c, conn := range conns {
			ask := func() {
				buf := make([]byte, 10)
				conn.Write([]byte("x"))
				_, err := conn.Read(buf)
				assert.NoError(t, err, "client %d", c)
			}
			if c < clients/2 {
				wg.Go(ask) // at once
			} else {
				ask() // one after the other
			}
		}
		wg.Wait()
		for range 3 { // on the sessions that there are
			for _, conn := range conns {
				assert.Equal(t, "y", exchange(t, conn, "y"))
			}
		}
		assert.Zero(t, l.Stats().Dropped)
	})
}

// The next datagram of a client whose backend has left, from the same port, reaches another.
func testRetainEndsSessions(t *testing.T, new NewUDP) {
	a, _ := udpBackend(t, "127.0.0.1:0", named("a"))
	c, _ := udpBackend(t, "127.0.0.1:0", named("c"))
	b := balance(a, c)
	_, l := startUDP(t, new, relay.Config{}, b)
	one, two := udpClient(t, l), udpClient(t, l)
	require.Equal(t, "a:x", exchange(t, one, "x"))
	require.Equal(t, "c:x", exchange(t, two, "x"))
	b.mu.Lock()
	b.backends = []netip.AddrPort{c}
	b.mu.Unlock()
	l.Retain([]netip.AddrPort{c})
	eventually(t, func() bool { return l.Stats().Active == 1 }, "the session to end")
	assert.Equal(t, "c:y", exchange(t, one, "y"))
	assert.Equal(t, "c:y", exchange(t, two, "y"))
	assert.EqualValues(t, 3, l.Stats().Accepted, "the other session went on")
}

func testUDPRefusing(t *testing.T, new NewUDP) {
	a, _ := udpBackend(t, "127.0.0.1:0", same)
	_, l := startUDP(t, new, relay.Config{}, balance(a))
	for range 10 {
		require.NoError(t, l.SetOpen(false))
		conn := udpClient(t, l)
		conn.Write([]byte("x"))
		_, err := conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNREFUSED, "ICMP port unreachable")
		_, err = net.ListenPacket("udp", l.Addr().String())
		require.ErrorIs(t, err, syscall.EADDRINUSE, "the port stays ours")
		require.NoError(t, l.SetOpen(true))
		require.Equal(t, "y", exchange(t, conn, "y"), "the same client, again")
	}
}
