package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"redial/config"
	"redial/proxy/intercept"
)

// ownAddress is an Interceptor that has the proxy listen on the VIPs themselves, for which loopback addresses stand in, and
// that cannot tell clients apart.
type ownAddress struct{ *recorder }

func (ownAddress) Limits(bool) intercept.Limits {
	return intercept.Limits{ClientsAlike: true, Refuses: true}
}

func (ownAddress) BindAddr(v intercept.VIP, _ uint16) netip.AddrPort {
	a := v.Addr.As4()
	a[0] = 127
	if v.NodePort() {
		a[3] = 9
	}
	return netip.AddrPortFrom(netip.AddrFrom4(a), 20000+v.Port%10000)
}

func startOwnAddress(t *testing.T, change ...func(*Config)) (*rig, *[]config.Problem) {
	t.Helper()
	var reported []config.Problem
	g := start(t, intercept.PortRange{}, append(change, func(c *Config) {
		c.Interceptor = ownAddress{c.Interceptor.(*recorder)}
		c.Report = func(_ config.ServiceName, p config.Problem) { reported = append(reported, p) }
	})...)
	return g, &reported
}

func (g *rig) answersAt(address, want string) {
	g.t.Helper()
	got, err := ask(address)
	require.NoError(g.t, err)
	assert.Equal(g.t, want+" hello", got)
}

func TestListensOnVIPsThemselves(t *testing.T) {
	g, _ := startOwnAddress(t)
	for i := range 3 {
		name := fmt.Sprintf("web%d", i)
		g.tracker.SetService(object(name, fmt.Sprintf("198.18.201.%d", i+1)))
		g.endpoints(name, "http", backend(t, name))
	}
	for i := range 3 {
		name := fmt.Sprintf("web%d", i)
		f := g.served(name, "http")
		assert.Zero(t, f.ProxyPort, "it takes none")
		g.answersAt(fmt.Sprintf("127.18.201.%d:20080", i+1), name)
	}
}

func TestVIPWhoseAddressIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp4", "127.18.202.9:20080")
	require.NoError(t, err)
	defer taken.Close()
	g, _ := startOwnAddress(t)
	g.tracker.SetService(object("web", "198.18.202.9", func(s *v1.Service) { s.Spec.ExternalIPs = []string{"198.18.202.1"} }))
	g.tracker.SetService(object("other", "198.18.202.2"))
	for _, name := range []string{"web", "other"} {
		g.endpoints(name, "http", backend(t, name))
	}
	g.served("other", "http")
	g.eventually(func() bool { return g.problem("web", ReasonListenFailed) != "" }, "a problem")
	message := g.problem("web", ReasonListenFailed)
	assert.Contains(t, message, "127.18.202.9:20080")
	assert.Contains(t, message, "another process has the port")
	assert.NotContains(t, message, "--proxy-port-range")
	g.served("web", "http")
	g.answersAt("127.18.202.1:20080", "web")
	g.answersAt("127.18.202.2:20080", "other")
	assert.False(t, slices.ContainsFunc(g.rec.steered(), func(s string) bool { return s[:12] == "198.18.202.9" }), "nobody is led to another process")

	require.NoError(t, taken.Close())
	g.eventually(func() bool { return g.problem("web", ReasonListenFailed) == "" }, "the address to be had")
	g.answersAt("127.18.202.9:20080", "web")
}

// Between two frontends, a VIP changes hands without failing.
func TestVIPMovesBetweenFrontends(t *testing.T) {
	g, reported := startOwnAddress(t)
	g.tracker.SetNode(config.Node{Name: here})
	policy := func(p v1.ServiceExternalTrafficPolicy) *v1.Service {
		return object("web", "198.18.203.1", func(s *v1.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy = v1.ServiceTypeNodePort, p
			s.Spec.Ports[0].NodePort = 30080
		})
	}
	const nodePort = "127.0.0.9:20080"
	g.tracker.SetService(policy(v1.ServiceExternalTrafficPolicyCluster))
	a, b := backend(t, "a"), backend(t, "b")
	g.place("web", placed{addr: a, node: here}, placed{addr: b, node: there})
	g.served("web", "http")
	_, err := ask(nodePort)
	require.NoError(t, err)

	g.tracker.SetService(policy(v1.ServiceExternalTrafficPolicyLocal))
	g.eventually(func() bool { return len(g.Status().Services[0].Ports[0].Fronts) == 2 }, "a frontend for the node's endpoints")
	g.eventually(func() bool { return len(g.Status().Services[0].Ports[0].Fronts[1].VIPs) == 1 }, "to have the NodePort")
	for range 4 {
		g.answersAt(nodePort, "a")
	}
	// No endpoint here: what others drop is refused, and that is what the status says.
	g.place("web", placed{addr: b, node: there})
	g.eventually(func() bool { return refuses(nodePort) }, "refused")
	for _, f := range g.Status().Services[0].Ports[0].Fronts {
		for _, v := range f.VIPs {
			assert.False(t, v.Drops)
		}
	}
	g.tracker.SetService(policy(v1.ServiceExternalTrafficPolicyCluster))
	g.eventually(func() bool { _, err := ask(nodePort); return err == nil }, "everybody's endpoints again")
	g.mu.Lock()
	defer g.mu.Unlock()
	assert.Empty(t, *reported)
}

// What its owner has restricted is not listened for at any time.
func TestRestrictedVIPsAreNotServed(t *testing.T) {
	ranges := func(s *v1.Service) {
		s.Spec.Type, s.Spec.LoadBalancerSourceRanges = v1.ServiceTypeLoadBalancer, []string{"198.18.128.0/24"}
		s.Spec.Ports[0].NodePort = 30080
		s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "198.18.204.9"}}
	}
	for name, c := range map[string]struct {
		change func(*Config)
		vips   []string
		say    string
	}{
		"sources":   {func(*Config) {}, []string{"198.18.204.1:80/tcp default/web:http/TCP", "*:30080/tcp default/web:http/TCP"}, "loadBalancerSourceRanges"},
		"localhost": {func(c *Config) { c.NoLocalhostNodePorts = true }, []string{"198.18.204.1:80/tcp default/web:http/TCP"}, "--iptables-localhost-nodeports"},
		"addresses": {func(c *Config) { c.NodePortAddresses, _ = ParseNodePortAddresses([]string{"198.18.0.0/15"}) },
			[]string{"198.18.204.1:80/tcp default/web:http/TCP"}, "--nodeport-addresses"},
	} {
		t.Run(name, func(t *testing.T) {
			g, _ := startOwnAddress(t, c.change)
			g.tracker.SetService(object("web", "198.18.204.1", ranges))
			g.endpoints("web", "http", backend(t, "a"))
			g.served("web", "http")
			var said []string
			for _, p := range g.Status().Services[0].Problems {
				assert.Equal(t, ReasonUnrestricted, p.Reason)
				said = append(said, p.Message)
			}
			assert.Contains(t, fmt.Sprint(said), c.say)
			assert.Contains(t, fmt.Sprint(said), "198.18.204.9")
			g.rec.mu.Lock()
			defer g.rec.mu.Unlock()
			require.NotEmpty(t, g.rec.commits)
			for _, commit := range g.rec.commits {
				for _, b := range commit.Bindings {
					assert.Contains(t, c.vips, fmt.Sprintf("%s %s", b.VIP, b.Owner))
				}
			}
			assert.True(t, refuses("127.18.204.9:20080"))
		})
	}
}
