package relaytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
	"redial/proxy/relay"
)

// UDPListener is what the suite needs of a UDP listener.
type UDPListener interface {
	Listener
	Retain(usable []netip.AddrPort)
}

// ListenUDP opens a UDP listener on an engine.
type ListenUDP func(addr netip.AddrPort, name string, b relay.Balancer) (UDPListener, error)

// NewUDP makes an engine.
type NewUDP func(relay.Config) (Engine, ListenUDP)

// RunUDP runs the UDP suite.
func RunUDP(t *testing.T, new NewUDP) {
	new = patiently(new)
	for name, test := range map[string]func(*testing.T, NewUDP){
		"Datagrams":                 testDatagrams,
		"SessionKeepsItsSocket":     testSessionKeepsItsSocket,
		"ManyClients":               testManyClients,
		"OneSided":                  testOneSided,
		"IdleSessionEnds":           testIdleSessionEnds,
		"RepliesKeepASessionAlive":  testRepliesKeepASessionAlive,
		"RefusedMoves":              testRefusedMoves,
		"BackendRestarts":           testBackendRestarts,
		"BackendDiesInSession":      testBackendDiesInSession,
		"AllRefuse":                 testAllRefuse,
		"RefusalsAreRare":           testRefusalsAreRare,
		"RetainEndsSessions":        testRetainEndsSessions,
		"UDPRefusing":               testUDPRefusing,
		"SessionsAreBounded":        testSessionsAreBounded,
		"FloodLeavesOthersAlone":    testFloodLeavesOthersAlone,
		"SourceOfReplies":           testSourceOfReplies,
		"UDPFDExhaustion":           testUDPFDExhaustion,
		"Overflow":                  testOverflow,
		"CloseAndShutdown":          testCloseAndShutdown,
		"UDPListenersAreBounded":    testUDPListenersAreBounded,
		"TwoQuestionsAtOnce":        testTwoQuestionsAtOnce,
		"AllShunned":                testAllShunned,
		"OwnFirewallBlamesNobody":   testOwnFirewallBlamesNobody,
		"NoLocalPortLeft":           testNoLocalPortLeft,
		"PathMTU":                   testPathMTU,
		"TheLargestGives":           testTheLargestGives,
		"SubscriberIsNotEvicted":    testSubscriberIsNotEvicted,
		"PanicCostsOneDatagram":     testPanicCostsOneDatagram,
		"ReadsToTheEnd":             testReadsToTheEnd,
		"RepliesEndWithTheirSocket": testRepliesEndWithTheirSocket,
		"SessionLimit":              testSessionLimit,
	} {
		t.Run(name, func(t *testing.T) { test(t, new) })
	}
}

func startUDP(t *testing.T, new NewUDP, cfg relay.Config, b *balancer) (Engine, UDPListener) {
	t.Helper()
	engine, listen := new(cfg)
	return engine, serveUDP(t, engine, listen, b, "127.0.0.1")
}

func serveUDP(t *testing.T, engine Engine, listen ListenUDP, b *balancer, address string) UDPListener {
	t.Helper()
	var l UDPListener
	listenAnywhere(t, func(addr netip.AddrPort, name string, b relay.Balancer) (_ Listener, err error) {
		l, err = listen(addr, name, b)
		return l, err
	}, netip.MustParseAddr(address), b)
	l.Serve()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		engine.Shutdown(ctx)
		s := l.Stats()
		require.Zero(t, s.Active, "%+v", s)
		require.Equal(t, s.Accepted, s.Connected+s.Failed+s.NoBackend+s.Limited, "%+v", s)
		b.mu.Lock()
		defer b.mu.Unlock()
		for a, n := range b.active {
			require.Zero(t, n, "sessions to %s", a)
		}
	})
	return l
}

// udpBackend answers each datagram by what answer makes of it; nil is no answer.
func udpBackend(t *testing.T, address string, answer func(from net.Addr, datagram []byte) []byte) (netip.AddrPort, func()) {
	t.Helper()
	conn, err := net.ListenPacket("udp", address)
	require.NoError(t, err)
	return serveDatagrams(t, conn, answer)
}

func serveDatagrams(t *testing.T, conn net.PacketConn, answer func(from net.Addr, datagram []byte) []byte) (netip.AddrPort, func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if reply := answer(from, buf[:n]); err == nil && reply != nil {
				conn.WriteTo(reply, from)
			}
		}
	}()
	stop := func() { conn.Close(); <-done }
	t.Cleanup(stop)
	return conn.LocalAddr().(*net.UDPAddr).AddrPort(), stop
}

func same(_ net.Addr, datagram []byte) []byte { return append([]byte{}, datagram...) }

// named answers "name:datagram".
func named(name string) func(net.Addr, []byte) []byte {
	return func(_ net.Addr, d []byte) []byte { return append([]byte(name+":"), d...) }
}

func udpClient(t *testing.T, l UDPListener) *net.UDPConn {
	t.Helper()
	conn, err := net.Dial("udp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.UDPConn)
}

func exchange(t *testing.T, conn net.Conn, datagram string) string {
	t.Helper()
	conn.SetDeadline(time.Now().Add(patience))
	_, err := conn.Write([]byte(datagram))
	require.NoError(t, err)
	buf := make([]byte, 1<<16)
	n, err := conn.Read(buf)
	require.NoError(t, err)
	return string(buf[:n])
}

// One in is one out, whole, whatever its size. An empty datagram is a datagram.
func testDatagrams(t *testing.T, new NewUDP) {
	a, _ := udpBackend(t, "127.0.0.1:0", same)
	_, l := startUDP(t, new, relay.Config{}, balance(a))
	conn := udpClient(t, l)
	for _, size := range []int{0, 1, 64, 1472, 1500, 1501, 4097, 65507} {
		want := random(size)
		_, err := conn.Write(want)
		require.NoError(t, err)
		got := make([]byte, 1<<16)
		n, err := conn.Read(got)
		require.NoError(t, err, "%d bytes", size)
		assert.True(t, bytes.Equal(want, got[:n]), "%d bytes", size)
	}
	s := l.Stats()
	assert.EqualValues(t, 8, s.DatagramsIn)
	assert.EqualValues(t, 8, s.DatagramsOut)
	assert.Zero(t, s.Dropped)
}

func testSessionKeepsItsSocket(t *testing.T, new NewUDP) {
	address := func(from net.Addr, _ []byte) []byte { return []byte(from.String()) }
	a, _ := udpBackend(t, "127.0.0.1:0", address)
	b, _ := udpBackend(t, "127.0.0.1:0", address)
	_, l := startUDP(t, new, relay.Config{}, balance(a, b))
	one, two := udpClient(t, l), udpClient(t, l)
	first := exchange(t, one, "?")
	assert.NotEqual(t, first, exchange(t, two, "?"))
	for range 10 {
		assert.Equal(t, first, exchange(t, one, "?"))
	}
	assert.EqualValues(t, 2, l.Stats().Accepted)
}

// Every client gets its own answers, also when they are many and at once.
func testManyClients(t *testing.T, new NewUDP) {
	const clients, rounds = 100, 50
	a, _ := udpBackend(t, "127.0.0.1:0", same)
	b, _ := udpBackend(t, "127.0.0.1:0", same)
	_, l := startUDP(t, new, relay.Config{}, balance(a, b))
	var wg sync.WaitGroup
	for c := range clients {
		conn := udpClient(t, l)
		wg.Go(func() {
			buf := make([]byte, 1<<16)
			for r := range rounds {
				want := fmt.Sprintf("%d/%d", c, r)
				conn.Write([]byte(want))
				n, err := conn.Read(buf)
				if !assert.NoError(t, err) || !assert.Equal(t, want, string(buf[:n])) {
					return
				}
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, clients, l.Stats().Accepted)
	assert.EqualValues(t, clients*rounds, l.Stats().DatagramsOut)
}

// statsd: nobody ever answers, and the session lives by the client's datagrams alone.
func testOneSided(t *testing.T, new NewUDP) {
	got := make(chan string, 100)
	sources := map[string]bool{}
	a, _ := udpBackend(t, "127.0.0.1:0", func(from net.Addr, d []byte) []byte {
		sources[from.String()] = true
		got <- string(d)
		return nil
	})
	engine, l := startUDP(t, new, relay.Config{UDPTimeout: time.Hour}, balance(a))
	conn := udpClient(t, l)
	for i := range 5 {
		fmt.Fprintf(conn, "%d", i)
		assert.Equal(t, fmt.Sprint(i), <-got)
		engine.Advance(40 * time.Minute)
	}
	assert.EqualValues(t, 1, l.Stats().Accepted)
	assert.Len(t, sources, 1)
}

func testIdleSessionEnds(t *testing.T, new NewUDP) {
	a, _ := udpBackend(t, "127.0.0.1:0", same)
	b := balance(a)
	engine, l := startUDP(t, new, relay.Config{}, b)
	conn := udpClient(t, l)
	exchange(t, conn, "x")
	l.Configure(relay.Settings{UDPTimeout: time.Hour})
	before := openFDs(t)
	engine.Advance(59 * time.Minute)
	assert.Zero(t, l.Stats().Expired)
	engine.Advance(time.Minute)
	assert.Zero(t, l.Stats().Active)
	assert.EqualValues(t, 1, l.Stats().Expired)
	assert.Equal(t, before-1, openFDs(t), "its socket is closed")
	assert.Equal(t, "again", exchange(t, conn, "again"))
}

// The client subscribed once and only listens.
func testRepliesKeepASessionAlive(t *testing.T, new NewUDP) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	engine, l := startUDP(t, new, relay.Config{UDPTimeout: time.Hour}, balance(conn.LocalAddr().(*net.UDPAddr).AddrPort()))
	client := udpClient(t, l)
	client.Write([]byte("subscribe"))
	buf := make([]byte, 100)
	_, from, err := conn.ReadFrom(buf)
	require.NoError(t, err)
	for range 5 {
		engine.Advance(40 * time.Minute)
		conn.WriteTo([]byte("news"), from)
		n, err := client.Read(buf)
		require.NoError(t, err)
		assert.Equal(t, "news", string(buf[:n]))
	}
	assert.EqualValues(t, 1, l.Stats().Active)
}

// A client is answered from the address it asked, whichever of the node's it was.
func testSourceOfReplies(t *testing.T, new NewUDP) {
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		client, err := node.AddHost("client", "198.18.2.2/24", "2001:db8:2::2/64")
		require.NoError(t, err)
		require.NoError(t, node.AddAddress(client.Uplink, "198.18.2.77/24"))
		require.NoError(t, node.AddAddress(client.Uplink, "2001:db8:2::77/64"))
		v4, _ := udpBackend(t, "127.0.0.1:0", same)
		v6, _ := udpBackend(t, "[::1]:0", same)
		engine, listen := new(relay.Config{})
		l4 := serveUDP(t, engine, listen, balance(v4), "0.0.0.0")
		l6 := serveUDP(t, engine, listen, balance(v6), "::")
		for _, l := range []UDPListener{l4, l6} { // having refused must not narrow down from whom they receive
			require.NoError(t, l.SetOpen(false))
			require.NoError(t, l.SetOpen(true))
		}
		for _, c := range []struct {
			from    *lab.Host
			l       UDPListener
			address string
		}{
			{client, l4, "198.18.2.1"}, {client, l4, "198.18.2.77"}, {node, l4, "127.0.0.1"}, {node, l4, "127.0.0.9"},
			{client, l6, "2001:db8:2::1"}, {client, l6, "2001:db8:2::77"}, {node, l6, "::1"},
			{client, l6, linkLocal(t, client.Uplink) + "%eth0"},
		} {
			var conn net.Conn
			require.NoError(t, c.from.Do(func() (err error) {
				// Connected: the kernel drops what comes from any other address.
				conn, err = net.Dial("udp", net.JoinHostPort(c.address, netPort(c.l.Addr().Port())))
				return err
			}), c.address)
			conn.SetDeadline(time.Now().Add(patience))
			assert.Equal(t, "x", exchange(t, conn, "x"), c.address)
			conn.Close()
		}
	})
}

func linkLocal(t *testing.T, device string) string {
	t.Helper()
	link, err := net.InterfaceByName(device)
	require.NoError(t, err)
	addrs, err := link.Addrs()
	require.NoError(t, err)
	for _, a := range addrs {
		if ip := a.(*net.IPNet).IP; ip.To4() == nil && ip.IsLinkLocalUnicast() {
			return ip.String()
		}
	}
	require.FailNow(t, "no link-local address")
	return ""
}

// Sessions are not queued: a datagram beyond the limit is lost.
func testSessionLimit(t *testing.T, new NewUDP) {
	a, _ := udpBackend(t, "127.0.0.1:0", same)
	b := balance(a)
	_, l := startUDP(t, new, relay.Config{}, b)
	limit := &relay.Limit{}
	limit.Set(1, 9, 0)
	l.Configure(relay.Settings{Limit: limit})
	first, second := udpClient(t, l), udpClient(t, l)
	for i := range 3 {
		exchange(t, first, "one")
		second.Write([]byte("two"))
		eventually(t, func() bool { return l.Stats().Limited == uint64(i+1) }, "the datagram to be dropped")
		l.Retain(nil)
		eventually(t, func() bool { return l.Stats().Active == 0 }, "the session to end")
	}
	assert.EqualValues(t, 3, l.Stats().Dropped)

	b.mu.Lock()
	b.limit = 1
	b.mu.Unlock()
	limit.Set(0, 0, 0)
	exchange(t, second, "two")
	first.Write([]byte("one"))
	eventually(t, func() bool { return l.Stats().Limited == 4 }, "the backend's own limit")
}
