package relaytest

import (
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

// A resolver asks for A and AAAA from one port, one right after the other. A refusal is about the first; both have to
// reach another server.
func testTwoQuestionsAtOnce(t *testing.T, new NewUDP) {
	good, _ := udpBackend(t, "127.0.0.1:0", same)
	b := balance(refusedUDP(t), good)
	hold := make(chan struct{})
	b.onPick = sync.OnceFunc(func() { <-hold })
	_, l := startUDP(t, new, relay.Config{}, b)
	conn := udpClient(t, l)
	conn.Write([]byte("A"))
	conn.Write([]byte("AAAA"))
	close(hold)
	got := map[string]bool{}
	for range 2 {
		buf := make([]byte, 10)
		n, err := conn.Read(buf)
		require.NoError(t, err)
		got[string(buf[:n])] = true
	}
	assert.Equal(t, map[string]bool{"A": true, "AAAA": true}, got)
}

// All backends have refused a moment ago, and are back. A session stays where it is, or the answers under way are lost.
func testAllShunned(t *testing.T, new NewUDP) {
	var mu sync.Mutex
	sources := map[string]bool{}
	remember := func(from net.Addr, d []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		sources[from.String()] = true
		return d
	}
	backends := []netip.AddrPort{refusedUDP(t), refusedUDP(t)}
	_, l := startUDP(t, new, relay.Config{}, balance(backends...))
	conn := udpClient(t, l)
	conn.Write([]byte("x"))
	eventually(t, func() bool { return l.Stats().Dropped == 1 }, "both to have refused")
	for _, a := range backends {
		udpBackend(t, a.String(), remember)
	}
	for range 10 {
		assert.Equal(t, "y", exchange(t, conn, "y"))
	}
	mu.Lock()
	defer mu.Unlock()
	assert.Len(t, sources, 1)
}

// What this host itself forbids (a full connection tracking table does the same) says nothing about the backend.
func testOwnFirewallBlamesNobody(t *testing.T, new NewUDP) {
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		pod, err := node.AddHost("pod", "198.18.1.2/24")
		require.NoError(t, err)
		var backends []netip.AddrPort
		for _, address := range []string{"198.18.1.2:53", "198.18.1.2:54"} {
			var conn net.PacketConn
			require.NoError(t, pod.Do(func() (err error) { conn, err = net.ListenPacket("udp", address); return err }))
			a, _ := serveDatagrams(t, conn, same)
			backends = append(backends, a)
		}
		// Connection tracking begins with the first rule that translates.
		if _, err := node.Output("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "203.0.113.0/24", "-j", "MASQUERADE"); err != nil {
			t.Skip("no connection tracking: " + err.Error())
		}
		b := balance(backends...)
		_, l := startUDP(t, new, relay.Config{}, b)
		var conns []*net.UDPConn
		for range 10 {
			conns = append(conns, udpClient(t, l))
			exchange(t, conns[len(conns)-1], "x")
		}
		if _, err := node.Output("iptables", "-A", "OUTPUT", "-p", "udp", "-d", "198.18.1.2", "-m", "conntrack", "--ctstate", "NEW", "-j", "DROP"); err != nil {
			t.Skip("cannot drop packets: " + err.Error())
		}
		for _, conn := range conns {
			assert.Equal(t, "y", exchange(t, conn, "y"))
		}
		udpClient(t, l).Write([]byte("new"))
		eventually(t, func() bool { return l.Stats().Dropped > 0 }, "the new client's datagram to be lost")
		for _, conn := range conns {
			assert.Equal(t, "z", exchange(t, conn, "z"), "those who are served stay so")
		}
		assert.Empty(t, b.failures())
	})
}

// Every session takes a local port. When there is none, the session that has been idle for longest gives up its own.
func testNoLocalPortLeft(t *testing.T, new NewUDP) {
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		a, _ := udpBackend(t, "127.0.0.1:7000", same)
		c, _ := udpBackend(t, "127.0.0.1:7001", same)
		b := balance(a, c)
		_, l := startUDP(t, new, relay.Config{}, b)
		var conns []net.Conn
		for i := range 12 {
			d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 20000 + i}}
			conn, err := d.Dial("udp", l.Addr().String())
			require.NoError(t, err)
			t.Cleanup(func() { conn.Close() })
			conns = append(conns, conn)
		}
		_, err := node.Output("sh", "-c", "echo 40000 40009 > /proc/sys/net/ipv4/ip_local_port_range")
		require.NoError(t, err)
		for _, conn := range conns {
			assert.Equal(t, "x", exchange(t, conn, "x"))
		}
		assert.Empty(t, b.failures())
		assert.Positive(t, l.Stats().Evicted)
	})
}

// A router says that a datagram is too large for the path. That is about the datagram, not the session.
func testPathMTU(t *testing.T, new NewUDP) {
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		router, err := node.AddHost("router", "198.18.1.2/24")
		require.NoError(t, err)
		far, err := router.AddHost("far", "198.18.7.2/24")
		require.NoError(t, err)
		for _, c := range []struct {
			host *lab.Host
			line string
		}{
			{router, "echo 1 > /proc/sys/net/ipv4/ip_forward; ip link set to-far mtu 1000"},
			{far, "ip link set eth0 mtu 1000"},
			{node, "ip route add 198.18.7.0/24 via 198.18.1.2"},
		} {
			_, err := c.host.Output("sh", "-ec", c.line)
			require.NoError(t, err)
		}
		var conn net.PacketConn
		require.NoError(t, far.Do(func() (err error) { conn, err = net.ListenPacket("udp", "198.18.7.2:53"); return err }))
		a, _ := serveDatagrams(t, conn, func(from net.Addr, _ []byte) []byte { return []byte(from.String()) })
		_, l := startUDP(t, new, relay.Config{}, balance(a))
		client := udpClient(t, l)
		source := exchange(t, client, "x")
		big := string(random(1200))
		eventually(t, func() bool { // the first is lost, and teaches the kernel to fragment
			client.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			client.Write([]byte(big))
			buf := make([]byte, 100)
			n, err := client.Read(buf)
			return err == nil && string(buf[:n]) == source
		}, "a large datagram to be answered on the same session")
		assert.Equal(t, source, exchange(t, client, "y"))
	})
}

// When sessions are scarce, those who have most give, on whichever loop they are.
func testTheLargestGives(t *testing.T, new NewUDP) {
	a, _ := udpBackend(t, "127.0.0.1:0", same)
	engine, listen := new(relay.Config{MaxFDs: 80}) // 20 sessions, 10 for each listener, 7 listeners
	var listeners []UDPListener
	for range 5 {
		listeners = append(listeners, serveUDP(t, engine, listen, balance(a), "127.0.0.1"))
	}
	for _, l := range []UDPListener{listeners[0], listeners[2]} {
		for range 10 {
			exchange(t, udpClient(t, l), "x")
		}
	}
	for _, l := range []UDPListener{listeners[1], listeners[3], listeners[4]} {
		for range 3 {
			assert.Equal(t, "y", exchange(t, udpClient(t, l), "y"))
		}
	}
}

// A session that answers keep busy is not an idle one.
func testSubscriberIsNotEvicted(t *testing.T, new NewUDP) {
	subscriber := make(chan net.Addr, 1)
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	a, _ := serveDatagrams(t, conn, func(from net.Addr, d []byte) []byte {
		if string(d) == "subscribe" {
			subscriber <- from
		}
		return d
	})
	_, l := startUDP(t, new, relay.Config{MaxFDs: 80}, balance(a))
	client := udpClient(t, l)
	exchange(t, client, "subscribe")
	to := <-subscriber
	for range 12 { // two more than there is room for
		exchange(t, udpClient(t, l), "x")
		conn.WriteTo([]byte("news"), to)
		buf := make([]byte, 10)
		n, err := client.Read(buf)
		require.NoError(t, err)
		require.Equal(t, "news", string(buf[:n]))
	}
}

// A fault in the balancer costs the datagram that met it, and nothing for good.
func testPanicCostsOneDatagram(t *testing.T, new NewUDP) {
	a, _ := udpBackend(t, "127.0.0.1:0", same)
	b := balance(a)
	panics := 0
	b.onPick = func() {
		if panics < 30 { // more than there are sessions
			panics++
			panic("a bug in the balancer")
		}
	}
	engine, listen := new(relay.Config{MaxFDs: 80})
	var l UDPListener
	listenAnywhere(t, func(addr netip.AddrPort, name string, b relay.Balancer) (_ Listener, err error) {
		l, err = listen(addr, name, b)
		return l, err
	}, netip.MustParseAddr("127.0.0.1"), b)
	l.Serve()
	defer l.Close()
	_ = engine
	conn := udpClient(t, l)
	eventually(t, func() bool {
		conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		conn.Write([]byte("x"))
		_, err := conn.Read(make([]byte, 10))
		return err == nil
	}, "the client to be served")
}

// More is waiting than one system call takes, and nothing comes after it that would wake the loop again.
func testReadsToTheEnd(t *testing.T, new NewUDP) {
	const datagrams = 100
	hold := make(chan struct{})
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	received := make(chan net.Addr, datagrams+1)
	a, _ := serveDatagrams(t, conn, func(from net.Addr, _ []byte) []byte { received <- from; return nil })
	b := balance(a)
	b.onPick = func() { <-hold }
	_, l := startUDP(t, new, relay.Config{}, b)
	client := udpClient(t, l)
	for range datagrams {
		client.Write([]byte("x"))
	}
	close(hold)
	for range datagrams {
		select {
		case from := <-received:
			conn.WriteTo([]byte("y"), from)
		case <-time.After(patience):
			require.FailNow(t, "waiting for the datagrams at the backend")
		}
	}
	for range datagrams {
		_, err := client.Read(make([]byte, 1))
		require.NoError(t, err)
	}
}
