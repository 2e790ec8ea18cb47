package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redial/config"
	"redial/proxy/intercept"
	"redial/proxy/relay"
)

func TestServes(t *testing.T) {
	g := start(t, testPorts)
	g.tracker.SetService(object("web", "198.18.0.1"))
	g.endpoints("web", "http", backend(t, "a"))
	f := g.served("web", "http")
	g.answers(f, "a")
	assert.Equal(t, []string{"198.18.0.1:80/tcp default/web:http/TCP"}, g.rec.steered())
	assert.True(t, testPorts.Contains(f.ProxyPort))
}

func TestPortsOfOneServiceAreSeparate(t *testing.T) {
	g := start(t, testPorts)
	g.tracker.SetService(object("web", "198.18.0.1", func(s *v1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "admin", Port: 81})
	}))
	g.endpoints("web", "http", backend(t, "a"))
	g.endpoints("web", "admin", backend(t, "b"))
	g.answers(g.served("web", "http"), "a")
	g.answers(g.served("web", "admin"), "b")
}

func TestDeletedServiceIsClosedAndComesBack(t *testing.T) {
	g := start(t, testPorts)
	a := backend(t, "a")
	g.tracker.SetService(object("web", "198.18.0.1"))
	g.endpoints("web", "http", a)
	f := g.served("web", "http")
	live, err := net.Dial("tcp", f.address())
	require.NoError(t, err)
	defer live.Close()
	_, err = askOn(live)
	require.NoError(t, err)

	g.tracker.DeleteService(config.ServiceName{Namespace: "default", Name: "web"})
	g.eventually(func() bool { return refuses(f.address()) }, "the port to close")
	assert.Empty(t, g.rec.steered())
	_, err = askOn(live)
	assert.NoError(t, err, "a live connection goes on")

	// Nothing is said of endpoints again: they still exist.
	g.tracker.SetService(object("web", "198.18.0.1"))
	again := g.served("web", "http")
	g.answers(again, "a")
	assert.Equal(t, f.ProxyPort, again.ProxyPort)
}

func TestChangedServiceKeepsItsSocket(t *testing.T) {
	g := start(t, testPorts)
	g.tracker.SetService(object("web", "198.18.0.1"))
	g.endpoints("web", "http", backend(t, "a"))
	f := g.served("web", "http")
	accepted := f.Stats.Accepted

	g.tracker.SetService(object("web", "198.18.0.2", func(s *v1.Service) {
		s.Spec.Ports[0].Port = 8080
		s.Spec.ExternalIPs = []string{"198.18.7.7"}
	}))
	g.eventually(func() bool {
		return slices.Equal(g.rec.steered(), []string{
			"198.18.0.2:8080/tcp default/web:http/TCP", "198.18.7.7:8080/tcp default/web:http/TCP",
		})
	}, "the new addresses to be steered, and only they")
	now := g.served("web", "http")
	assert.Equal(t, f.ProxyPort, now.ProxyPort)
	assert.GreaterOrEqual(t, now.Stats.Accepted, accepted, "it is the same listener")
	g.answers(now, "a")
}

func TestServiceWithoutAddressIsClosed(t *testing.T) {
	for _, clusterIP := range []string{"", "None"} {
		g := start(t, testPorts)
		g.tracker.SetService(object("web", "198.18.0.1"))
		g.endpoints("web", "http", backend(t, "a"))
		f := g.served("web", "http")
		g.tracker.SetService(object("web", clusterIP))
		g.eventually(func() bool { return refuses(f.address()) }, "the port to close")
		g.tracker.SetService(object("web", "198.18.0.1"))
		g.answers(g.served("web", "http"), "a")
	}
}

func TestEndpointsChangeWithoutASync(t *testing.T) {
	g := start(t, testPorts)
	a, b := backend(t, "a"), backend(t, "b")
	g.tracker.SetService(object("web", "198.18.0.1"))
	g.endpoints("web", "http", a)
	f := g.served("web", "http")
	syncs := g.rec.count()

	g.endpoints("web", "http", b)
	g.eventually(func() bool { got, err := ask(f.address()); return err == nil && got == "b hello" }, "b to serve")
	g.endpoints("web", "http")
	g.eventually(func() bool { return refuses(f.address()) }, "clients to be refused")
	g.endpoints("web", "http", a)
	g.eventually(func() bool { got, err := ask(f.address()); return err == nil && got == "a hello" }, "a to serve")
	assert.Equal(t, syncs, g.rec.count(), "no rule was written")
}

// A Service that never had an endpoint is steered too: its clients are refused, not left to the network.
func TestServiceWithoutEndpointsRefuses(t *testing.T) {
	g := start(t, testPorts)
	g.tracker.SetService(object("web", "198.18.0.1"))
	g.eventually(func() bool { return len(g.rec.steered()) == 1 }, "the address to be steered")
	f, ok := g.frontend("web", "http")
	require.True(t, ok)
	assert.False(t, f.Serving)
	assert.True(t, refuses(f.address()))
}

func TestPortInUseIsAvoided(t *testing.T) {
	ports := intercept.PortRange{First: 63000, Last: 63001}
	l, err := net.Listen("tcp", "127.0.0.1:63000")
	require.NoError(t, err)
	defer l.Close()
	g := start(t, ports)
	g.tracker.SetService(object("web", "198.18.0.1"))
	g.endpoints("web", "http", backend(t, "a"))
	f := g.served("web", "http")
	assert.EqualValues(t, 63001, f.ProxyPort)
	g.answers(f, "a")
}

func TestExhaustedRangeHarmsOnlyTheLast(t *testing.T) {
	g := start(t, intercept.PortRange{First: 63010, Last: 63011})
	a := backend(t, "a")
	for i, service := range []string{"one", "two", "zero"} {
		g.tracker.SetService(object(service, fmt.Sprintf("198.18.0.%d", i+1)))
		g.endpoints(service, "http", a)
		if i < 2 {
			g.answers(g.served(service, "http"), "a")
		}
	}
	g.eventually(func() bool { return g.problem("zero", ReasonListenFailed) != "" }, "the problem to show")
	assert.Contains(t, g.problem("zero", ReasonListenFailed), "--proxy-port-range")
	g.answers(g.served("one", "http"), "a")
	g.answers(g.served("two", "http"), "a")

	g.tracker.DeleteService(config.ServiceName{Namespace: "default", Name: "one"})
	g.answers(g.served("zero", "http"), "a")
	g.eventually(func() bool { return g.problem("zero", ReasonListenFailed) == "" }, "the problem to go")
}

// A binding that the kernel refuses is its own Service's problem, and is tried again.
func TestRefusedBindingHarmsNobodyElse(t *testing.T) {
	g := start(t, testPorts)
	a := backend(t, "a")
	g.rec.failWith(func(bindings []intercept.Binding) error {
		var errs []error
		for _, b := range bindings {
			if strings.Contains(b.Owner, "bad") {
				errs = append(errs, &intercept.BindingError{Binding: b, Err: errors.New("the kernel says no")})
			}
		}
		return errors.Join(errs...)
	})
	g.tracker.SetService(object("bad", "198.18.0.1"))
	g.tracker.SetService(object("good", "198.18.0.2"))
	g.endpoints("good", "http", a)
	g.answers(g.served("good", "http"), "a")
	g.eventually(func() bool { return strings.Contains(g.problem("bad", ReasonSteeringFailed), "the kernel says no") }, "the problem to show")
	assert.Empty(t, g.problem("good", ReasonSteeringFailed))

	g.rec.failWith(nil)
	g.eventually(func() bool { return g.problem("bad", ReasonSteeringFailed) == "" }, "the next try to succeed")
}

// While it is not known what is in force, nothing that the old rules may point to goes away.
func TestFailedSyncClosesNothing(t *testing.T) {
	g := start(t, testPorts)
	a := backend(t, "a")
	g.tracker.SetService(object("old", "198.18.0.1"))
	g.endpoints("old", "http", a)
	f := g.served("old", "http")

	g.rec.failWith(func([]intercept.Binding) error { return errors.New("the lock is held") })
	before := g.rec.count()
	g.tracker.DeleteService(config.ServiceName{Namespace: "default", Name: "old"})
	g.tracker.SetService(object("new", "198.18.0.2"))
	g.endpoints("new", "http", a)
	g.eventually(func() bool { return g.rec.count() >= before+2 && g.Status().Sync.Error != "" }, "it to be tried again")
	g.answers(f, "a")

	g.rec.failWith(nil)
	g.eventually(func() bool { return refuses(f.address()) && g.Status().Sync.Error == "" }, "the old port to close")
	g.answers(g.served("new", "http"), "a")
}

func TestTamperedRulesAreRepaired(t *testing.T) {
	g := start(t, testPorts)
	g.tracker.SetService(object("web", "198.18.0.1"))
	g.eventually(func() bool { return len(g.rec.steered()) == 1 }, "the address to be steered")
	before := g.rec.count()
	g.rec.mu.Lock()
	g.rec.tampered = true
	g.rec.mu.Unlock()
	g.eventually(func() bool { return g.rec.count() > before }, "the repair")
	assert.EqualValues(t, 1, g.Status().Sync.Repairs)
}

// TCP and UDP on one number, as DNS has it. The UDP half changes backends and refuses without a sync, like TCP.
func TestServesUDP(t *testing.T) {
	g := start(t, testPorts)
	g.tracker.SetService(object("dns", "198.18.0.1", func(s *v1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "dns", Port: 80, Protocol: v1.ProtocolUDP})
	}))
	g.endpoints("dns", "http", backend(t, "tcp"))
	a, b := udpBackend(t, "a"), udpBackend(t, "b")
	g.udpEndpoints(a)
	f := g.served("dns", "dns")
	g.answers(g.served("dns", "http"), "tcp")
	client, err := net.Dial("udp", f.address())
	require.NoError(t, err)
	defer client.Close()
	// An answer that is under way when its session ends is lost, so the client asks again, as UDP clients do.
	ask := func() (string, error) {
		client.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		client.Write([]byte("x"))
		buf := make([]byte, 10)
		n, err := client.Read(buf)
		return string(buf[:n]), err
	}
	g.eventually(func() bool { got, err := ask(); return err == nil && got == "a" }, "a to serve")
	g.eventually(func() bool { return g.Health().PendingSince.IsZero() }, "the syncs of the start to be over")
	syncs := g.rec.count()

	g.udpEndpoints(b)
	g.eventually(func() bool { got, err := ask(); return err == nil && got == "b" }, "the session to move")
	g.udpEndpoints()
	g.eventually(func() bool { _, err := ask(); return errors.Is(err, syscall.ECONNREFUSED) }, "datagrams to be refused")
	g.udpEndpoints(a)
	g.eventually(func() bool { got, err := ask(); return err == nil && got == "a" }, "a to serve")
	assert.Equal(t, syncs, g.rec.count(), "no rule was written")
}

// A UDP client stays with a backend that terminates as long as it serves, as a TCP connection does; new clients do not come
// to it.
func TestUDPClientsStayWithTerminatingBackends(t *testing.T) {
	g := start(t, testPorts)
	g.tracker.SetService(object("web", "198.18.0.1", func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolUDP }))
	a, b := placed{addr: udpBackend(t, "a"), protocol: v1.ProtocolUDP}, placed{addr: udpBackend(t, "b"), protocol: v1.ProtocolUDP}
	g.place("web", a)
	at := g.served("web", "http").address()
	client := func() func() (string, error) {
		conn, err := net.Dial("udp", at)
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		return func() (string, error) {
			conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			conn.Write([]byte("x"))
			buf := make([]byte, 10)
			n, err := conn.Read(buf)
			return string(buf[:n]), err
		}
	}
	old := client()
	g.eventually(func() bool { got, err := old(); return err == nil && got == "a" }, "a to serve")

	a.terminating = true
	g.place("web", a, b)
	g.eventually(func() bool { got, err := client()(); return err == nil && got == "b" }, "new clients to come to b")
	g.eventually(func() bool { got, err := old(); return err == nil && got == "a" }, "the old one to be still with a")

	a.unready = true
	g.place("web", a, b)
	g.eventually(func() bool { got, err := old(); return err == nil && got == "b" }, "the session to move once a serves no more")
}

func (g *rig) udpEndpoints(addrs ...netip.AddrPort) {
	name, protocol := "dns", v1.ProtocolUDP
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "dns-udp", Labels: map[string]string{discoveryv1.LabelServiceName: "dns"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, a := range addrs {
		port := int32(a.Port())
		slice.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.Addr().String()}})
	}
	g.tracker.SetSlice(slice)
}

func udpBackend(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	go func() {
		for buf := make([]byte, 100); ; {
			_, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			conn.WriteTo([]byte(name), from)
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestNothingHappensBeforeEverythingIsDelivered(t *testing.T) {
	tracker := config.NewTracker(config.Options{})
	rec := &recorder{t: t}
	log := logrus.New()
	log.SetOutput(io.Discard)
	p := New(Config{Tracker: tracker, Interceptor: rec, Relay: relay.New(relay.Config{}), Ports: testPorts, Log: logrus.NewEntry(log)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { p.Run(ctx); close(done) }()
	tracker.SetService(object("web", "198.18.0.1"))
	tracker.ServicesDelivered()
	assert.Zero(t, rec.count(), "what an earlier run left stays until the whole is known")
	tracker.EndpointsDelivered()
	require.Eventually(t, func() bool { return len(rec.steered()) == 1 }, patience, time.Millisecond)
	assert.Equal(t, 1, rec.count(), "one write for all")
	cancel()
	<-done
}
