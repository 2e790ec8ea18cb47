package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
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

const patience = time.Minute

// recorder is an Interceptor that steers nothing and remembers what it was asked to. It insists on the contract: calls
// never overlap, and what is committed can be connected to.
type recorder struct {
	intercept.None
	t *testing.T

	mu       sync.Mutex
	busy     bool
	commits  []intercept.State
	fail     func([]intercept.Binding) error // decides what the next Commits return
	tampered bool                            // Verify finds the rules changed, until the next Commit
	looks    func() error                    // decides what Verify returns; nil: success
	intact   int                             // consecutive looks that were well
}

func (r *recorder) Commit(_ context.Context, want intercept.State) error {
	bindings := want.Bindings
	r.mu.Lock()
	defer r.mu.Unlock()
	assert.False(r.t, r.busy, "calls overlap")
	r.busy = true
	defer func() { r.busy = false }()
	for _, b := range bindings {
		if b.VIP.Protocol != intercept.TCP {
			continue
		}
		for _, to := range []netip.AddrPort{b.Listen, b.Local} {
			if !to.IsValid() {
				continue // dropped, or for everybody the same
			}
			c, err := net.Dial("tcp", to.String())
			if err == nil {
				c.Close()
			}
			// A reset comes from a proxy that found no backend.
			assert.False(r.t, err != nil && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ECONNRESET), "steering to %s: %v", to, err)
		}
	}
	r.commits = append(r.commits, want)
	if r.fail != nil {
		return r.fail(bindings)
	}
	r.tampered = false
	return nil
}

// remember is for what wraps a real Interceptor.
func (r *recorder) remember(want intercept.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.commits = append(r.commits, want)
}

// follow has the rig see what rec and the Tracker of its own Config do, rather than those that start made.
func (g *rig) follow(rec *recorder) *rig {
	g.rec, g.tracker = rec, g.cfg.Tracker
	g.t.Cleanup(func() { g.cfg.Relay.Shutdown(g.t.Context()) })
	return g
}

// delivered is a Tracker of a node that has been handed everything.
func delivered() *config.Tracker {
	tracker := config.NewTracker(config.Options{Node: config.Node{Name: here}})
	tracker.ServicesDelivered()
	tracker.EndpointsDelivered()
	return tracker
}

func (r *recorder) Verify(context.Context) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.looks != nil {
		r.intact = 0
		return false, r.looks()
	}
	r.intact++
	return !r.tampered, nil
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.commits)
}

func (r *recorder) steered() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	if len(r.commits) > 0 {
		for _, b := range r.commits[len(r.commits)-1].Bindings {
			out = append(out, fmt.Sprintf("%s %s", b.VIP, b.Owner))
		}
	}
	return out
}

func (r *recorder) failWith(f func([]intercept.Binding) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = f
}

// rig is a running Proxier with its source of changes.
type rig struct {
	*Proxier
	t       *testing.T
	tracker *config.Tracker
	rec     *recorder
	marks   int // of settled
}

var testPorts = intercept.PortRange{First: 62000, Last: 62999}

func start(t *testing.T, ports intercept.PortRange, change ...func(*Config)) *rig {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	g := &rig{t: t, tracker: config.NewTracker(config.Options{}), rec: &recorder{t: t}}
	r := relay.New(relay.Config{})
	cfg := Config{
		Tracker: g.tracker, Interceptor: g.rec, Relay: r, Ports: ports,
		MinSyncPeriod: time.Millisecond, SyncPeriod: 10 * time.Millisecond, Log: logrus.NewEntry(log),
	}
	for _, c := range change {
		c(&cfg)
	}
	g.Proxier = New(cfg)
	g.runner.retry, g.runner.share = 10*time.Millisecond, 1
	g.healthCheckRetry = 10 * time.Millisecond
	g.tracker.ServicesDelivered()
	g.tracker.EndpointsDelivered()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { assert.NoError(t, g.Run(ctx)); close(done) }()
	t.Cleanup(func() {
		cancel()
		<-done
		r.Shutdown(ctx)
	})
	return g
}

func object(service, clusterIP string, change ...func(*v1.Service)) *v1.Service {
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service},
		Spec: v1.ServiceSpec{
			ClusterIP: clusterIP,
			Ports:     []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP}},
		},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

// endpoints sets a Service's endpoints, for the port named.
func (g *rig) endpoints(service, port string, addrs ...netip.AddrPort) {
	byPort := map[uint16][]discoveryv1.Endpoint{}
	for _, a := range addrs {
		byPort[a.Port()] = append(byPort[a.Port()], discoveryv1.Endpoint{Addresses: []string{a.Addr().String()}})
	}
	g.mu.Lock()
	var old []string
	if s := g.wanted[config.ServiceName{Namespace: "default", Name: service}]; s != nil {
		for _, p := range s.Ports {
			for _, e := range p.Endpoints {
				if p.Name.Port == port && byPort[e.Addr.Port()] == nil {
					old = append(old, fmt.Sprintf("%s-%s-%d", service, port, e.Addr.Port()))
				}
			}
		}
	}
	g.mu.Unlock()
	for number, eps := range byPort {
		n := int32(number)
		g.tracker.SetSlice(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s-%s-%d", service, port, number), Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: &port, Port: &n}},
			Endpoints:   eps,
		})
	}
	for _, slice := range old {
		g.tracker.DeleteSlice("default", slice)
	}
}

// backend answers every line with its name and the line.
func backend(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	return backendAt(t, name, "127.0.0.1")
}

func (g *rig) frontend(service, port string) (FrontendStatus, bool) {
	for _, s := range g.Status().Services {
		for _, p := range s.Ports {
			if s.Name == service && p.Name == port && len(p.Fronts) > 0 {
				return p.Fronts[0], true
			}
		}
	}
	return FrontendStatus{}, false
}

func (g *rig) served(service, port string) FrontendStatus {
	g.t.Helper()
	g.eventually(func() bool {
		f, ok := g.frontend(service, port)
		return ok && f.Serving && len(f.VIPs) > 0
	}, service+":"+port+" to be served")
	f, _ := g.frontend(service, port)
	return f
}

func (g *rig) problem(service, reason string) string {
	for _, s := range g.Status().Services {
		for _, p := range s.Problems {
			if s.Name == service && p.Reason == reason {
				return p.Message
			}
		}
	}
	return ""
}

func (g *rig) eventually(condition func() bool, what string) {
	g.t.Helper()
	if !assert.Eventually(g.t, condition, patience, time.Millisecond, what) {
		require.FailNow(g.t, what, "%+v", g.Status())
	}
}

func (f FrontendStatus) address() string { return fmt.Sprintf("127.0.0.1:%d", f.ProxyPort) }

// ask sends a line over a new connection and returns the answer.
func ask(address string) (string, error) {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return askOn(c)
}

func askOn(c net.Conn) (string, error) {
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintln(c, "hello")
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

func (g *rig) answers(f FrontendStatus, want string) {
	g.t.Helper()
	got, err := ask(f.address())
	require.NoError(g.t, err)
	require.Equal(g.t, want+" hello", got)
}

func refuses(address string) bool {
	_, err := ask(address)
	return errors.Is(err, syscall.ECONNREFUSED)
}
