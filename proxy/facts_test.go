package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redial/config"
	"redial/proxy/intercept"
)

func TestHealth(t *testing.T) {
	assert.Equal(t, Health{}, New(Config{}).Health(), "starting")

	g := start(t, testPorts)
	began := time.Now()
	<-g.Synced()
	g.settled()
	h := g.Health()
	assert.Zero(t, h.PendingSince)
	assert.False(t, h.LastUpdated.Before(began), "idle is up to date")

	g.rec.failWith(func([]intercept.Binding) error { return errors.New("the lock is held") })
	changed := time.Now()
	g.tracker.SetService(object("web", "198.18.0.1"))
	g.eventually(func() bool { return g.SyncStatus().Failures >= 2 }, "it to be tried twice")
	h = g.Health()
	require.False(t, h.PendingSince.Before(changed))
	assert.Equal(t, h.PendingSince, h.LastUpdated)
	g.tracker.SetService(object("web", "198.18.0.2"))
	g.eventually(func() bool { return g.SyncStatus().ServiceChanges == 3 }, "a later change")
	assert.Equal(t, h, g.Health(), "it pends since the first")
	assert.EqualValues(t, 2, g.SyncStatus().PendingServiceChanges)

	g.rec.failWith(nil)
	g.eventually(func() bool { return g.Health().PendingSince.IsZero() }, "health to return")
	assert.Zero(t, g.SyncStatus().PendingServiceChanges)

	// One bad Service is not the node's illness, however often it is tried.
	g.rec.failWith(func(b []intercept.Binding) error {
		return &intercept.BindingError{Binding: b[0], Err: errors.New("the kernel says no")}
	})
	g.tracker.SetService(object("web", "198.18.0.3"))
	syncs := g.SyncStatus().Syncs
	g.eventually(func() bool { return g.SyncStatus().Syncs > syncs+2 && g.problem("web", ReasonSteeringFailed) != "" }, "it to be tried again and again")
	assert.Zero(t, g.Health().PendingSince)
}

func TestNeverSyncedIsNeverUpToDate(t *testing.T) {
	g := start(t, testPorts, func(c *Config) {
		c.Interceptor.(*recorder).fail = func([]intercept.Binding) error { return errors.New("no nat table") }
	})
	g.eventually(func() bool { return g.SyncStatus().Failures > 0 }, "a failure")
	assert.Zero(t, g.Health().LastUpdated)
	assert.NotZero(t, g.Health().PendingSince)
	select {
	case <-g.Synced():
		t.Error("synced")
	default:
	}
}

func TestProblemsAreReportedOnce(t *testing.T) {
	var mu sync.Mutex
	var reported []string
	g := start(t, testPorts, func(c *Config) {
		c.Report = func(name config.ServiceName, p config.Problem) {
			mu.Lock()
			defer mu.Unlock()
			reported = append(reported, name.String()+" "+p.Reason)
		}
	})
	sctp := func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolSCTP }
	g.tracker.SetService(object("web", "198.18.0.1", sctp))
	g.settled()
	assert.Contains(t, g.problem("web", ReasonUnsupportedProtocol), "use TCP or UDP")
	g.tracker.SetService(object("web", "198.18.0.1", sctp, exposed(30080)))
	g.settled()
	g.tracker.SetService(object("web", "198.18.0.1"))
	g.settled()
	g.tracker.SetService(object("web", "198.18.0.1", sctp))
	g.settled()
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, []string{"default/web UnsupportedProtocol", "default/web UnsupportedProtocol"}, reported, "once each time it appears")
}

// checks is a HealthChecks that refuses some ports, and insists on the contract.
type checks struct {
	t      *testing.T
	busy   atomic.Bool
	mu     sync.Mutex
	calls  int
	wanted []HealthCheck
	taken  map[uint16]bool
}

func (c *checks) Sync(wanted []HealthCheck) (errs []HealthCheckError) {
	assert.True(c.t, c.busy.CompareAndSwap(false, true), "calls overlap")
	defer c.busy.Store(false)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	c.wanted = wanted
	for _, w := range wanted {
		if c.taken[w.Port] {
			errs = append(errs, HealthCheckError{w.Service, errors.New("address already in use")})
		}
	}
	return errs
}

func (c *checks) now() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var s []string
	for _, w := range c.wanted {
		s = append(s, fmt.Sprintf("%s %d %d", w.Service.Name, w.Port, w.LocalEndpoints))
	}
	return fmt.Sprint(s)
}

func (c *checks) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

func balanced(port int32) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Spec.Type = v1.ServiceTypeLoadBalancer
		s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
		s.Spec.HealthCheckNodePort = port
		s.Spec.Ports[0].NodePort = port - 1000
	}
}

func TestHealthChecks(t *testing.T) {
	c := &checks{t: t, taken: map[uint16]bool{}}
	g := start(t, testPorts, func(cfg *Config) { cfg.HealthChecks = c })
	g.tracker.SetNode(config.Node{Name: here})
	l1, l2, r := placed{addr: backend(t, "a"), node: here}, placed{addr: backend(t, "b"), node: here}, placed{addr: backend(t, "c"), node: there}
	l2.addr = addrPortOn("127.0.0.2", l2.addr.Port())
	leaving := l1
	leaving.terminating = true
	g.tracker.SetService(object("web", "198.18.0.1", balanced(31000)))
	g.tracker.SetService(object("other", "198.18.0.2"))
	g.settled()
	for _, s := range []struct {
		name string
		eps  []placed
		want string
	}{
		{"none", nil, "[web 31000 0]"},
		{"two of one pod", []placed{l1, {addr: addrPortOn("127.0.0.1", 9), node: here}}, "[web 31000 1]"},
		{"none again", []placed{r}, "[web 31000 0]"},
		{"one here", []placed{l1, r}, "[web 31000 1]"},
		{"two here", []placed{l1, l2, r}, "[web 31000 2]"},
		{"terminating does not count, though it serves", []placed{leaving, r}, "[web 31000 0]"},
	} {
		g.place("web", s.eps...)
		g.eventually(func() bool { return c.now() == s.want }, s.name)
	}
	assert.Equal(t, []string{"a"}, reached(g.listenOf("web", config.LocalPool)))
	assert.Equal(t, []uint16{31000}, g.rec.committed().HealthChecks, "the host's firewall is to let them in")
	g.place("web", l1)
	g.eventually(func() bool { return c.now() == "[web 31000 1]" }, "one")
	g.tracker.SetNode(config.Node{Name: there})
	g.eventually(func() bool { return c.now() == "[web 31000 0]" }, "of another node")
	calls := c.count()
	g.place("web", r)
	g.eventually(func() bool { return c.now() == "[web 31000 1]" }, "its own")
	g.place("other", l1, l2, r)
	g.place("web", r, l1)
	g.settled()
	assert.Equal(t, calls+1, c.count(), "neither are other Services' endpoints news, nor other nodes'")

	calls = c.count()
	g.tracker.SetNode(config.Node{Name: there, Addrs: []netip.Addr{netip.MustParseAddr("198.18.77.1")}})
	g.eventually(func() bool { return c.count() > calls }, "other addresses to be listened at")

	c.mu.Lock()
	c.taken[31001] = true
	c.mu.Unlock()
	g.tracker.SetService(object("third", "198.18.0.3", balanced(31001)))
	g.eventually(func() bool { return g.problem("third", ReasonHealthCheckFailed) != "" }, "the failure to show")
	assert.Contains(t, g.problem("third", ReasonHealthCheckFailed), "healthCheckNodePort 31001: address already in use")
	assert.Empty(t, g.problem("web", ReasonHealthCheckFailed))
	calls = c.count()
	g.eventually(func() bool { return c.count() > calls+2 }, "it to be tried again")
	c.mu.Lock()
	delete(c.taken, 31001)
	c.mu.Unlock()
	g.eventually(func() bool { return g.problem("third", ReasonHealthCheckFailed) == "" }, "the failure to go")

	g.eventually(func() bool { return slices.Equal(g.rec.committed().HealthChecks, []uint16{31000, 31001}) }, "both to be let in")
	g.tracker.SetService(object("third", "198.18.0.3", balanced(31001), func(s *v1.Service) { s.Spec.HealthCheckNodePort = 31002 }))
	g.eventually(func() bool { return slices.Equal(g.rec.committed().HealthChecks, []uint16{31000, 31002}) }, "the number alone to be news")

	g.tracker.SetService(object("web", "198.18.0.1"))
	g.tracker.DeleteService(config.ServiceName{Namespace: "default", Name: "third"})
	g.eventually(func() bool { return c.now() == "[]" }, "nothing to be left")
}

// Load balancers are told to come only when there are rules.
func TestHealthChecksWaitForTheFirstRules(t *testing.T) {
	c := &checks{t: t}
	g := start(t, testPorts, func(cfg *Config) {
		cfg.HealthChecks = c
		cfg.Interceptor.(*recorder).fail = func([]intercept.Binding) error { return errors.New("no nat table") }
	})
	g.tracker.SetService(object("web", "198.18.0.1", balanced(31000)))
	g.eventually(func() bool { return g.SyncStatus().Failures > 2 && len(g.Status().Services) == 1 }, "failures")
	assert.Zero(t, c.count())
	g.rec.failWith(nil)
	g.eventually(func() bool { return c.now() == "[web 31000 0]" }, "the health check")
}

type observations struct {
	mu         sync.Mutex
	syncs      []string
	programmed []time.Duration
}

func (o *observations) Synced(took time.Duration, full bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.syncs = append(o.syncs, fmt.Sprint(full, err))
}

func (o *observations) Programmed(latency time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.programmed = append(o.programmed, latency)
}

func (o *observations) told() ([]string, int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.syncs), len(o.programmed)
}

// trigger sets a Service's only endpoint, with the time at which the endpoint controller saw the change.
func (g *rig) trigger(service string, e placed, at time.Time) {
	port, number := "http", int32(e.addr.Port())
	g.tracker.SetSlice(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service},
			Annotations: map[string]string{v1.EndpointsLastChangeTriggerTime: at.Format(time.RFC3339Nano)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &port, Port: &number}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{e.addr.Addr().String()}, NodeName: &e.node}},
	})
}

func TestObserver(t *testing.T) {
	o := &observations{}
	g := start(t, testPorts, func(c *Config) { c.Observer = o })
	g.tracker.SetNode(config.Node{Name: here})
	a, b, r := placed{addr: backend(t, "a"), node: here}, placed{addr: backend(t, "b"), node: here}, placed{addr: backend(t, "r"), node: there}
	last := func() string {
		syncs, _ := o.told()
		return syncs[len(syncs)-1]
	}
	g.settled() // with the node, of which a change concerns all Services
	g.eventually(func() bool { syncs, _ := o.told(); return len(syncs) > 0 && syncs[0] == "true <nil>" }, "the first sync, a full one")

	g.trigger("web", a, time.Now().Add(-time.Hour))
	g.tracker.SetService(object("web", "198.18.0.1", local(true, false)))
	g.settled()
	g.eventually(func() bool { return last() == "false <nil>" }, "one for a Service")
	_, programmed := o.told()
	assert.Zero(t, programmed, "it changed before the start")

	g.trigger("web", b, time.Now())
	g.eventually(func() bool { _, n := o.told(); return n == 1 }, "what takes effect at once to be told at once")

	g.rec.failWith(func([]intercept.Binding) error { return errors.New("the lock is held") })
	g.trigger("web", r, time.Now().Add(time.Hour))
	g.eventually(func() bool { s, _ := o.told(); return s[len(s)-1] == "true the lock is held" }, "a failure, and another full one")
	_, programmed = o.told()
	assert.Equal(t, 1, programmed, "the rule that drops is not there yet")
	assert.EqualValues(t, 1, g.SyncStatus().PendingEndpointChanges)
	g.rec.failWith(nil)
	g.settled()
	o.mu.Lock()
	defer o.mu.Unlock()
	require.Len(t, o.programmed, 2, "once")
	assert.Zero(t, o.programmed[1], "a clock that is ahead does not make it negative")
}
