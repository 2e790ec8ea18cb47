package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/config"
	"redial/proxy"
	"redial/proxy/intercept/lab"
)

// resolver is a Service with UDP port 53 on one ClusterIP and its backends on port 8053.
func resolver(name, clusterIP string, backends ...string) string {
	return manifests(service(name, fmt.Sprintf("{clusterIP: %s, ports: [{port: 53, protocol: UDP}]}", clusterIP)),
		endpoints(name, "[{port: 8053, protocol: UDP}]", backends...))
}

// udpBackend answers datagrams.
type udpBackend struct {
	t        *testing.T
	name     string
	host     *lab.Host
	address  string
	answer   func(*udpBackend, []byte) []byte
	received atomic.Int64
	conn     net.PacketConn
}

// What a backend may answer.
var (
	named = func(b *udpBackend, datagram []byte) []byte { return append([]byte(b.name+":"), datagram...) }
	whole = func(_ *udpBackend, datagram []byte) []byte { return datagram }
	// mute is a collector of statistics.
	mute = func(*udpBackend, []byte) []byte { return nil }
)

// addUDPBackend attaches pod number n and answers on port 8053 of both families. name is also the pod's.
func addUDPBackend(t *testing.T, node *lab.Host, name string, n int) *udpBackend {
	t.Helper()
	return answerOn(t, addHost(t, node, name, n), name, ":8053")
}

func answerOn(t *testing.T, host *lab.Host, name, address string) *udpBackend {
	t.Helper()
	return serveUDPOn(t, host, name, address, named)
}

func serveUDPOn(t *testing.T, host *lab.Host, name, address string, answer func(*udpBackend, []byte) []byte) *udpBackend {
	t.Helper()
	b := &udpBackend{t: t, name: name, host: host, address: address, answer: answer}
	b.serve()
	return b
}

func (b *udpBackend) serve() {
	b.t.Helper()
	require.NoError(b.t, b.host.Do(func() (err error) { b.conn, err = net.ListenPacket("udp", b.address); return err }))
	go b.answerLoop(b.conn)
}

// refuse closes the port: the host's kernel answers with ICMP port unreachable.
func (b *udpBackend) refuse() { b.conn.Close() }

func (b *udpBackend) answerLoop(conn net.PacketConn) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		b.received.Add(1)
		if answer := b.answer(b, buf[:n]); answer != nil {
			conn.WriteTo(answer, from)
		}
	}
}

// flow is a UDP client: a connected socket, which keeps its port, and to which the kernel passes nothing that comes from
// another address than the one it asks.
type flow struct {
	net.Conn
	from   *lab.Host
	serial int
}

// openFlow sends nothing yet. source 0 is a port of the kernel's choice.
func openFlow(from *lab.Host, source int, address string) (*flow, error) {
	f := &flow{from: from}
	err := from.Do(func() (err error) {
		to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address))
		f.Conn, err = net.DialUDP("udp", &net.UDPAddr{Port: source}, to)
		return err
	})
	return f, err
}

func mustOpenFlow(t *testing.T, from *lab.Host, address string) *flow {
	t.Helper()
	f, err := openFlow(from, 0, address)
	require.NoError(t, err, "from %s to %s", from.Name, address)
	t.Cleanup(func() { f.Close() })
	return f
}

func (f *flow) String() string {
	return fmt.Sprintf("%s, %s to %s", f.from.Name, f.LocalAddr(), f.RemoteAddr())
}

// exchange sends one datagram and waits for its answer; what comes late to earlier ones is passed over.
func (f *flow) exchange(patience time.Duration) (backend string, err error) {
	f.serial++
	sent := fmt.Sprint(f.serial)
	f.SetReadDeadline(time.Now().Add(patience))
	if _, err := f.Write([]byte(sent)); err != nil {
		return "", err
	}
	buf := make([]byte, 1<<16)
	for {
		n, err := f.Read(buf)
		if err != nil {
			return "", err
		}
		backend, heard, _ := strings.Cut(string(buf[:n]), ":")
		if heard == sent {
			return backend, nil
		}
	}
}

// tick is the time between two datagrams of clients that go on for as long as a test wants them to.
const tick = 200 * time.Millisecond

// awaitBackend has all flows send, one datagram each in a tick or more, until backend has answered every one of them. An error in
// between is what the clients of UDP put up with.
func awaitBackend(t *testing.T, backend string, flows ...*flow) {
	t.Helper()
	began := time.Now()
	var last string
	wait := tick // and longer where answers take longer
	if !eventually(func() bool {
		for _, f := range flows {
			if name, err := f.exchange(wait); name != backend {
				last = fmt.Sprintf("%s: %q, %v", f, name, err)
				wait = min(wait*3/2, udpPatience)
				return false
			}
		}
		return true
	}) {
		require.FailNow(t, "not answered in time by "+backend, "%s", last)
	}
	t.Logf("%s answers after %s", backend, time.Since(began).Round(time.Millisecond))
}

// awaitRefused has the flow send until it is refused.
func awaitRefused(t *testing.T, f *flow) {
	t.Helper()
	var err error
	if !eventually(func() bool { _, err = f.exchange(tick); return errors.Is(err, syscall.ECONNREFUSED) }) {
		require.FailNow(t, "not refused in time", "%s: %v", f, err)
	}
}

// awaitArrival has the flow send until the backend receives something.
func awaitArrival(t *testing.T, b *udpBackend, f *flow) {
	t.Helper()
	before := b.received.Load()
	for deadline := time.Now().Add(testPatience); b.received.Load() == before; time.Sleep(tick) {
		require.True(t, time.Now().Before(deadline), "%s: nothing arrives at %s", f, b.name)
		f.Write([]byte("measure"))
	}
}

// udpPatience is how long an answer may take. Who hears nothing for so long, never will.
const udpPatience = 20 * time.Second

// askUDP is one exchange from a port of its own.
func askUDP(from *lab.Host, address string) (backend string, err error) {
	f, err := openFlow(from, 0, address)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return f.exchange(udpPatience)
}

// assertAnswersUDP expects one of the backends to answer the only datagram that is sent.
func assertAnswersUDP(t *testing.T, from *lab.Host, address string, backends ...string) {
	t.Helper()
	name, err := askUDP(from, address)
	if assert.NoError(t, err, "from %s to %s", from.Name, address) {
		assert.Contains(t, backends, name, "from %s to %s", from.Name, address)
	}
}

// assertRefusedUDP expects ICMP port unreachable, for the only datagram that is sent.
func assertRefusedUDP(t *testing.T, from *lab.Host, address string) {
	t.Helper()
	name, err := askUDP(from, address)
	assert.ErrorIs(t, err, syscall.ECONNREFUSED, "from %s to %s: %q", from.Name, address, name)
}

// assertEcho expects a datagram of the size to come back whole.
func assertEcho(t *testing.T, f *flow, size int) {
	t.Helper()
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	f.SetReadDeadline(time.Now().Add(udpPatience))
	_, err := f.Write(sent)
	require.NoError(t, err, "%s, %d bytes", f, size)
	buf := make([]byte, 1<<16)
	n, err := f.Read(buf)
	require.NoError(t, err, "%s, %d bytes", f, size)
	assert.True(t, bytes.Equal(sent, buf[:n]), "%s: %d bytes out, %d back", f, size, n)
}

// port returns the port of a Service with the protocol; a zero one if there is none.
func (s *status) port(service string, protocol config.Protocol) proxy.PortStatus {
	if svc := s.service(service); svc != nil {
		for _, p := range svc.Ports {
			if p.Protocol == protocol {
				return p
			}
		}
	}
	return proxy.PortStatus{}
}

// trackForLong has connection tracking remember flows for longer than any test takes. Some flow must have been tracked
// before.
func trackForLong(t *testing.T, node *lab.Host) {
	t.Helper()
	for _, kind := range []string{"", "_stream"} {
		require.NoError(t, node.Sysctl("netfilter/nf_conntrack_udp_timeout"+kind, "3600"))
	}
}

// tracked is how connection tracking sees a client's flow.
type tracked struct {
	id        string
	replyPort string // the source port of replies, which says where the flow really goes
}

var (
	conntrackID    = regexp.MustCompile(`\bid=(\d+)`)
	conntrackSport = regexp.MustCompile(`\bsport=(\d+)`)
)

// trackedFlow looks a client's flow up in the node's connection tracking; a zero one if it is not there.
func trackedFlow(t *testing.T, node *lab.Host, f *flow) tracked {
	t.Helper()
	to, from := f.RemoteAddr().(*net.UDPAddr), f.LocalAddr().(*net.UDPAddr)
	family := "ipv4"
	if to.IP.To4() == nil {
		family = "ipv6"
	}
	out, err := node.Output("conntrack", "-L", "-o", "id", "-f", family, "-p", "udp", "--orig-src", from.IP.String(),
		"--orig-dst", to.IP.String(), "--orig-port-src", fmt.Sprint(from.Port), "--orig-port-dst", fmt.Sprint(to.Port))
	require.NoError(t, err)
	for line := range strings.Lines(out) {
		id, ports := conntrackID.FindStringSubmatch(line), conntrackSport.FindAllStringSubmatch(line, -1)
		if strings.HasPrefix(line, "udp") && id != nil && len(ports) == 2 {
			return tracked{id[1], ports[1][1]}
		}
	}
	return tracked{}
}
