package intercepttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

// Who is who. The node's addresses are those on the uplink that lab gives it.
const (
	nodeIP4, nodeIP6     = "198.18.255.1", "2001:db8:ff::1"
	podIP4, podIP6       = "198.18.1.2", "2001:db8:1::2"
	clientIP4, clientIP6 = "198.18.3.2", "2001:db8:3::2"
)

func vip(addr string, port uint16, protocol intercept.Protocol) intercept.VIP {
	return intercept.VIP{Addr: netip.MustParseAddr(addr), Port: port, Protocol: protocol}
}

func bind(addr string, port uint16, protocol intercept.Protocol, proxyPort uint16) intercept.Binding {
	return intercept.Binding{VIP: vip(addr, port, protocol), Owner: fmt.Sprintf("ns/web:%d", proxyPort)}
}

// served is a TCP binding of a VIP with port 80.
func (g *rig) served(addr string, proxyPort uint16) intercept.Binding {
	b := bind(addr, 80, intercept.TCP, proxyPort)
	b.Listen = g.bindAddr(b.VIP, proxyPort)
	return b
}

// every has a VIP of each kind, family and protocol.
func (g *rig) every() []intercept.Binding {
	var bindings []intercept.Binding
	for _, p := range []intercept.Protocol{intercept.TCP, intercept.UDP} {
		for _, b := range []intercept.Binding{
			bind("198.18.100.10", 80, p, 61010), bind("2001:db8:100::10", 80, p, 61010), // ClusterIP
			bind("198.18.100.10", 81, p, 61015), bind("2001:db8:100::10", 81, p, 61015), // another port of it
			bind("198.18.110.5", 80, p, 61011), bind("2001:db8:110::5", 80, p, 61011), // externalIP
			bind("198.18.120.6", 80, p, 61012), bind("2001:db8:120::6", 80, p, 61012), // load balancer IP
			bind(nodeIP4, 8080, p, 61013), bind(nodeIP6, 8080, p, 61013), // externalIP that is the node's
			bind("0.0.0.0", 30080, p, 61014), bind("::", 30080, p, 61014), // NodePort
		} {
			_, number, _ := strings.Cut(b.Owner, ":")
			var port uint16
			fmt.Sscan(number, &port)
			b.Listen = g.bindAddr(b.VIP, port)
			bindings = append(bindings, b)
		}
	}
	return bindings
}

// socket is where somebody listens.
type socket struct {
	protocol intercept.Protocol
	addr     netip.AddrPort
}

// serve listens for bindings. Each answers with its owner and the address of the client.
func (g *rig) serve(bindings []intercept.Binding) {
	g.Helper()
	for _, b := range bindings {
		s := socket{b.VIP.Protocol, b.Listen}
		if g.listeners[s] != nil {
			continue
		}
		network := b.VIP.Protocol.String() + "4"
		if b.VIP.Addr.Is6() {
			network = b.VIP.Protocol.String() + "6"
		}
		lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			var err error
			return errors.Join(raw.Control(func(fd uintptr) { err = g.control(int(fd), b.Listen, b.VIP.Protocol) }), err)
		}}
		if b.VIP.Protocol == intercept.TCP {
			l, err := lc.Listen(context.Background(), network, b.Listen.String())
			require.NoError(g, err)
			g.listeners[s] = l
			g.share(s, l)
			go answerConnections(l, b.Owner)
			continue
		}
		pc, err := lc.ListenPacket(context.Background(), network, b.Listen.String())
		require.NoError(g, err)
		g.listeners[s] = pc
		go answerDatagrams(pc.(*net.UDPConn), b.Owner)
	}
}

// bindAddr is where to listen for v. Where each VIP has a listener of its own, no proxy port is given.
func (g *rig) bindAddr(v intercept.VIP, port uint16) netip.AddrPort {
	if g.limits.OwnListeners && !g.Shared {
		port = 0
	}
	return g.i.BindAddr(v, port)
}

// share hands a listener over, if VIPs are to share it.
func (g *rig) share(s socket, l io.Closer) {
	g.Helper()
	if !g.Shared || s.protocol != intercept.TCP || !s.addr.Addr().IsLoopback() {
		return
	}
	sharer, err := intercept.SharerOf(g.i, s.addr.Addr().Is6())
	require.NoError(g, err)
	raw, err := l.(*net.TCPListener).SyscallConn()
	require.NoError(g, err)
	var serr error
	require.NoError(g, raw.Control(func(fd uintptr) { serr = sharer.Share(s.addr, int(fd)) }))
	require.NoError(g, serr)
}

func (g *rig) control(fd int, addr netip.AddrPort, p intercept.Protocol) error {
	var err error
	if p == intercept.UDP && addr.Addr().Is6() {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	} else if p == intercept.UDP {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
	if err == nil && g.ListenControl != nil {
		err = g.ListenControl(fd, addr)
	}
	return err
}

func answerConnections(l net.Listener, name string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		fmt.Fprintf(conn, "%s %s", name, addrOf(conn.RemoteAddr()))
		conn.Close()
	}
}

func addrOf(a net.Addr) netip.Addr { return netip.MustParseAddrPort(a.String()).Addr().Unmap() }

// answerDatagrams sends the answer from the address that the datagram came to, as the proxy does.
func answerDatagrams(conn *net.UDPConn, name string) {
	buf, oob := make([]byte, 100), make([]byte, 100)
	for {
		_, n, _, from, err := conn.ReadMsgUDPAddrPort(buf, oob)
		if err != nil {
			return
		}
		messages, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil || len(messages) != 1 {
			continue
		}
		var control []byte
		if info := messages[0].Data; len(info) == unix.SizeofInet4Pktinfo {
			control = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte(info[4:8])})
		} else {
			control = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: [16]byte(info[:16])})
		}
		conn.WriteMsgUDPAddrPort(fmt.Appendf(nil, "%s %s", name, from.Addr().Unmap()), control, from)
	}
}

// An answer may take long on a busy machine. What must not come is not waited for as long.
const (
	patience = 30 * time.Second
	briefly  = 300 * time.Millisecond
)

// ask sends from h to a VIP and returns the answer.
func ask(h *lab.Host, v intercept.VIP, wait time.Duration) (answer string, err error) {
	err = h.Do(func() error {
		conn, err := net.DialTimeout(v.Protocol.String(), netip.AddrPortFrom(v.Addr, v.Port).String(), wait)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(wait))
		if v.Protocol == intercept.UDP {
			if _, err := conn.Write([]byte("?")); err != nil {
				return err
			}
		}
		buf := make([]byte, 100)
		n, err := conn.Read(buf)
		answer = string(buf[:n])
		return err
	})
	return answer, err
}

// reached are the VIPs by which h comes to b.
func (g *rig) reached(h *lab.Host, b intercept.Binding) []intercept.VIP {
	v := b.VIP
	if !v.NodePort() {
		return []intercept.VIP{v}
	}
	at, loopback := nodeIP4, "127.0.0.1"
	if v.Addr.Is6() {
		at, loopback = nodeIP6, "::1"
	}
	vips := []intercept.VIP{vip(at, v.Port, v.Protocol)}
	if h == g.node {
		vips = append(vips, vip(loopback, v.Port, v.Protocol))
	}
	return vips
}

// assertServed expects b's own listener to answer, and to see the client as it is.
func (g *rig) assertServed(h *lab.Host, b intercept.Binding) {
	g.Helper()
	for _, v := range g.reached(h, b) {
		answer, err := ask(h, v, patience)
		if !assert.NoError(g, err, "%s from %s", v, h.Name) {
			continue
		}
		name, source, _ := strings.Cut(answer, " ")
		assert.Equal(g, b.Owner, name, "%s from %s", v, h.Name)
		want := map[*lab.Host][2]string{g.pod: {podIP4, podIP6}, g.client: {clientIP4, clientIP6}, g.node: {nodeIP4, nodeIP6}}[h]
		own := want[0]
		if v.Addr.Is6() {
			own = want[1]
		}
		if v.Addr.IsLoopback() {
			own = v.Addr.String()
		}
		assert.Equal(g, own, source, "the client of %s from %s", v, h.Name)
	}
}

// assertNotServed expects no answer, and returns what there was instead.
func (g *rig) assertNotServed(h *lab.Host, b intercept.Binding) error {
	g.Helper()
	var err error
	for _, v := range g.reached(h, b) {
		var answer string
		answer, err = ask(h, v, briefly)
		assert.Error(g, err, "%s from %s: %s", v, h.Name, answer)
	}
	return err
}

func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
