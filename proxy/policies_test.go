package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"redial/config"
	"redial/proxy/intercept"
)

func TestPlanGivesEachPolicyItsFrontends(t *testing.T) {
	full := func(internal, external bool) *config.Service {
		return svc("web", "198.18.0.1", nodePort(30080), func(p *config.ServicePort) {
			p.ExternalIPs = []netip.Addr{netip.MustParseAddr("198.18.9.9")}
			p.InternalLocal, p.ExternalLocal = internal, external
		})
	}
	for _, c := range []struct {
		name    string
		service *config.Service
		want    []string
	}{
		{"Cluster", full(false, false), []string{
			"Cluster 198.18.0.1:80/tcp ", "Cluster 198.18.9.9:80/tcp ", "Cluster *:30080/tcp "}},
		{"internal Local", full(true, false), []string{
			"Cluster 198.18.9.9:80/tcp ", "Cluster *:30080/tcp ", "Local 198.18.0.1:80/tcp "}},
		{"external Local", full(false, true), []string{
			"Cluster 198.18.0.1:80/tcp ", "Cluster 198.18.9.9:80/tcp node", "Cluster *:30080/tcp node",
			"Local 198.18.9.9:80/tcp elsewhere", "Local *:30080/tcp elsewhere"}},
		{"both Local", full(true, true), []string{
			"Cluster 198.18.9.9:80/tcp node", "Cluster *:30080/tcp node",
			"Local 198.18.0.1:80/tcp ", "Local 198.18.9.9:80/tcp elsewhere", "Local *:30080/tcp elsewhere"}},
		{"nothing but a ClusterIP, Local", svc("web", "198.18.0.1", func(p *config.ServicePort) { p.InternalLocal = true }), []string{
			"Local 198.18.0.1:80/tcp "}},
	} {
		p := buildPlan(wantedOf(c.service), nil)
		var got []string
		for _, key := range p.keys() {
			for _, v := range p.frontends[key] {
				got = append(got, fmt.Sprintf("%s %s %s", key.pool, v.VIP, v.from))
			}
		}
		assert.Equal(t, c.want, got, c.name)
		assert.Empty(t, p.problems)
	}
}

func TestSourceRanges(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("198.18.128.0/24"), netip.MustParsePrefix("2001:db8:1::/48")}
	lb := func(ranges []netip.Prefix) *config.ServicePort {
		s := svc("web", "198.18.0.1", nodePort(30080), func(p *config.ServicePort) {
			p.ExternalIPs = []netip.Addr{netip.MustParseAddr("198.18.9.9"), netip.MustParseAddr("198.18.9.1")}
			p.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.18.9.1"), netip.MustParseAddr("198.18.9.2"), netip.MustParseAddr("2001:db8::9")}
			p.SourceRanges = ranges
		})
		return &s.Ports[0]
	}
	sources := func(ranges []netip.Prefix) map[string][]netip.Prefix {
		got := map[string][]netip.Prefix{}
		for _, v := range vipsOf(lb(ranges)) {
			if v.sources != nil {
				got[v.Addr.String()] = v.sources
			}
		}
		return got
	}
	assert.Empty(t, sources(nil), "everybody")
	assert.Equal(t, map[string][]netip.Prefix{
		"198.18.9.1": ranges[:1], "198.18.9.2": ranges[:1], "2001:db8::9": ranges[1:],
	}, sources(ranges), "an externalIP beside the load balancer's opens no way around; ClusterIP and NodePort are not restricted")
	assert.Equal(t, []netip.Prefix{}, sources(ranges[:1])["2001:db8::9"], "a family that is not mentioned is for nobody")
	assert.Len(t, sources([]netip.Prefix{}), 3, "for nobody")
}

// Every policy with every distribution of endpoints, in both families at once: the rules, and who answers behind them.
func TestPolicies(t *testing.T) {
	const none, only, others, mixed = "none", "local", "remote", "both"
	sets := []string{none, only, others, mixed}
	g := start(t, testPorts)
	g.tracker.SetNode(config.Node{Name: here})
	addrs := map[config.Family]string{config.IPv4: "127.0.0.1", config.IPv6: "::1"}
	backends := map[config.Family][2]netip.AddrPort{}
	for f, a := range addrs {
		backends[f] = [2]netip.AddrPort{backendAt(t, "l", a), backendAt(t, "r", a)}
	}
	placedIn := func(set string, f config.Family) []placed {
		l, r := placed{addr: backends[f][0], node: here}, placed{addr: backends[f][1], node: there}
		return map[string][]placed{none: nil, only: {l}, others: {r}, mixed: {l, r}}[set]
	}
	type want struct {
		rule         string
		listen, node []string // who answers
	}
	behind := map[string][]string{none: {"refused"}, only: {"l"}, others: {"r"}, mixed: {"l", "r"}}
	locally := map[string]want{
		none: {"Local", []string{"refused"}, nil}, only: {"Local", []string{"l"}, nil},
		others: {"drop", nil, nil}, mixed: {"Local", []string{"l"}, nil},
	}
	expect := map[intercept.VIP]want{}
	number := 0
	for policy := range 4 {
		internal, external := policy&1 != 0, policy&2 != 0
		for i, set4 := range sets {
			// The families have different endpoints.
			set := map[config.Family]string{config.IPv4: set4, config.IPv6: sets[(i+1+policy)%4]}
			number++
			name, port := fmt.Sprintf("web-%d", number), int32(30000+number)
			ips := []string{fmt.Sprintf("198.18.0.%d", number), fmt.Sprintf("2001:db8::%d", number)}
			g.tracker.SetService(object(name, ips[0], exposed(port), local(internal, external), func(s *v1.Service) {
				s.Spec.ClusterIPs = ips
				s.Spec.IPFamilies = []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
			}))
			g.place(name, slices.Concat(placedIn(set[config.IPv4], config.IPv4), placedIn(set[config.IPv6], config.IPv6))...)
			for j, f := range config.Families {
				cluster := want{"Cluster", behind[set[f]], nil}
				in, ex := cluster, cluster
				if internal {
					in = locally[set[f]]
				}
				if external {
					ex = locally[set[f]]
					ex.node = behind[set[f]]
				}
				expect[intercept.VIP{Addr: netip.MustParseAddr(ips[j]), Port: 80, Protocol: intercept.TCP}] = in
				expect[intercept.VIP{Addr: anyAddr(f), Port: uint16(port), Protocol: intercept.TCP}] = ex
			}
		}
	}
	g.settled()
	pools := map[netip.AddrPort]config.Pool{}
	g.mu.Lock()
	for key, f := range g.frontends {
		for _, addr := range f.addrs() {
			pools[addr] = key.pool
		}
	}
	g.mu.Unlock()
	seen := 0
	for _, b := range g.rec.committed().Bindings {
		w, ok := expect[b.VIP]
		if !ok {
			continue // the marker
		}
		seen++
		got := want{rule: "drop"}
		if b.Listen.IsValid() {
			got.rule, got.listen = string(pools[b.Listen]), reached(b.Listen)
		}
		if b.Local.IsValid() {
			assert.Equal(t, config.ClusterPool, pools[b.Local], b.VIP)
			got.node = reached(b.Local)
		}
		assert.Equal(t, w, got, "%s %s", b.VIP, b.Owner)
	}
	assert.Equal(t, len(expect), seen)
}

// With a policy Local, endpoints that come and go write rules only when clients begin or stop to be dropped, and once.
func TestRulesAreWrittenOnlyWhenDropsFlip(t *testing.T) {
	g := start(t, testPorts)
	g.tracker.SetNode(config.Node{Name: here})
	l1, l2 := placed{addr: backend(t, "l1"), node: here}, placed{addr: backend(t, "l2"), node: here}
	r1, r2 := placed{addr: backend(t, "r1"), node: there}, placed{addr: backend(t, "r2"), node: there}
	leaving, unready := l1, l1
	leaving.terminating, unready.unready = true, true
	g.tracker.SetService(object("web", "198.18.0.1", exposed(30080), local(true, true)))
	served := []string{"*:30080/tcp Local node:Cluster", "198.18.0.1:80/tcp Local"}
	dropped := []string{"*:30080/tcp drop node:Cluster", "198.18.0.1:80/tcp drop"}
	g.eventually(func() bool { return slices.Equal(g.inForce(), served) }, "the first rules")
	for _, c := range []struct {
		name    string
		eps     []placed
		commits int
		rules   []string
		answers []string // from the local frontend
	}{
		{"a first one here", []placed{l1}, 0, served, []string{"l1"}},
		{"another one here", []placed{l2}, 0, served, []string{"l2"}},
		{"two here, one there", []placed{l1, l2, r1}, 0, served, []string{"l1", "l2"}},
		{"those here go", []placed{r1}, 1, dropped, []string{"refused"}},
		{"another one there", []placed{r2}, 0, dropped, []string{"refused"}},
		{"one here that is not ready", []placed{unready, r2}, 0, dropped, []string{"refused"}},
		{"one here is back", []placed{l1, r2}, 1, served, []string{"l1"}},
		{"it terminates", []placed{leaving, r2}, 0, served, []string{"l1"}},
		{"all go", nil, 0, served, []string{"refused"}},
		{"one there comes", []placed{r1}, 1, dropped, []string{"refused"}},
		{"it goes", nil, 1, served, []string{"refused"}},
	} {
		before := g.rec.count()
		changes := g.SyncStatus().EndpointChanges
		g.place("web", c.eps...)
		g.eventually(func() bool {
			return g.SyncStatus().EndpointChanges == changes+1 && g.Health().PendingSince.IsZero()
		}, c.name)
		assert.Equal(t, before+c.commits, g.rec.count(), c.name)
		assert.Equal(t, c.rules, g.inForce(), c.name)
		f, ok := g.frontendOf("web", config.LocalPool, config.IPv4)
		require.True(t, ok)
		assert.Equal(t, c.answers, reached(netip.MustParseAddrPort(f.address())), c.name)
	}
}

// Between the loss of the last local endpoint and the rule that drops, nobody is reset who can still be answered.
func TestLocalEndpointsServeUntilTheRuleDrops(t *testing.T) {
	g := start(t, testPorts)
	g.tracker.SetNode(config.Node{Name: here})
	l, l2, r := placed{addr: backend(t, "l"), node: here}, placed{addr: backend(t, "l2"), node: here}, placed{addr: backend(t, "r"), node: there}
	g.tracker.SetService(object("web", "198.18.0.1", exposed(30080), local(false, true)))
	g.place("web", l, r)
	g.settled()
	f, _ := g.frontendOf("web", config.LocalPool, config.IPv4)
	at := netip.MustParseAddrPort(f.address())

	g.rec.failWith(func([]intercept.Binding) error { return errors.New("the lock is held") })
	before := g.rec.count()
	g.place("web", r)
	g.eventually(func() bool { return g.rec.count() >= before+2 }, "the rule to be tried")
	assert.Equal(t, []string{"l"}, reached(at))
	f, _ = g.frontendOf("web", config.LocalPool, config.IPv4)
	assert.True(t, f.Serving)
	assert.False(t, f.VIPs[0].Drops, "not in force")

	g.rec.failWith(nil)
	g.eventually(func() bool { return refuses(f.address()) }, "the frontend to be empty once the rule is there")
	f, _ = g.frontendOf("web", config.LocalPool, config.IPv4)
	assert.True(t, f.VIPs[0].Drops)

	g.rec.failWith(func([]intercept.Binding) error { return errors.New("the lock is held") })
	g.place("web", l2, r)
	g.eventually(func() bool { return slices.Equal(reached(at), []string{"l2"}) }, "the other way round, it is open before the rule leads there")
}

func TestPolicyChangesKeepClusterSockets(t *testing.T) {
	g := start(t, testPorts)
	g.tracker.SetNode(config.Node{Name: here})
	g.place("web", placed{addr: backend(t, "l"), node: here}, placed{addr: backend(t, "r"), node: there})
	port := func(pool config.Pool) uint16 {
		f, _ := g.frontendOf("web", pool, config.IPv4)
		return f.ProxyPort
	}
	g.tracker.SetService(object("web", "198.18.0.1", exposed(30080)))
	g.settled()
	cluster := port(config.ClusterPool)
	assert.Zero(t, port(config.LocalPool))
	g.tracker.SetService(object("web", "198.18.0.1", exposed(30080), local(true, true)))
	g.settled()
	assert.Equal(t, cluster, port(config.ClusterPool))
	assert.NotZero(t, port(config.LocalPool))
	assert.NotEqual(t, cluster, port(config.LocalPool))
	g.tracker.SetService(object("web", "198.18.0.1", local(true, false)))
	g.settled()
	assert.Zero(t, port(config.ClusterPool), "everything is Local: nobody comes there")
	g.tracker.SetService(object("web", "198.18.0.1"))
	g.settled()
	assert.Equal(t, cluster, port(config.ClusterPool))
	assert.Zero(t, port(config.LocalPool))
}

// A node that learns its name, its zone or its addresses serves by them at once.
func TestNodeChanges(t *testing.T) {
	g := start(t, testPorts, func(c *Config) {
		c.NodePortAddresses = NodePortAddresses{primary: true}
		c.LocalPods = LocalPods{NodeCIDR: true}
		c.NoLocalhostNodePorts = true
	})
	g.tracker.SetService(object("web", "198.18.0.1", local(true, false)))
	g.place("web", placed{addr: backend(t, "a"), node: here}, placed{addr: backend(t, "b"), node: there})
	g.settled()
	assert.Equal(t, []string{"198.18.0.1:80/tcp drop"}, g.unmarked(), "no node, no local endpoint")
	assert.Equal(t, []netip.Prefix{}, g.rec.committed().NodePorts)
	assert.True(t, g.rec.committed().NoLocalhostNodePorts)

	addr, pods := netip.MustParseAddr("198.18.77.1"), netip.MustParsePrefix("198.18.78.0/24")
	g.tracker.SetNode(config.Node{Name: here, Addrs: []netip.Addr{addr}, PodCIDRs: []netip.Prefix{pods}})
	g.settled()
	assert.Equal(t, []string{"198.18.0.1:80/tcp Local"}, g.unmarked())
	assert.Equal(t, []netip.Prefix{netip.PrefixFrom(addr, 32)}, g.rec.committed().NodePorts)
	assert.Equal(t, []intercept.PodSource{{Prefix: pods}}, g.rec.committed().Pods)
	f, _ := g.frontendOf("web", config.LocalPool, config.IPv4)
	g.answers(f, "a")

	more := netip.MustParseAddr("2001:db8::77")
	g.tracker.SetNode(config.Node{Name: here, Addrs: []netip.Addr{addr, more}, PodCIDRs: []netip.Prefix{pods}})
	g.eventually(func() bool {
		return slices.Equal(g.rec.committed().NodePorts, []netip.Prefix{netip.PrefixFrom(addr, 32), netip.PrefixFrom(more, 128)})
	}, "an address that is new to be open without another change")

	g.tracker.SetNode(config.Node{Name: there})
	g.settled()
	g.answers(f, "b")
	assert.Empty(t, g.rec.committed().Pods)
	syncs := g.rec.count()
	g.tracker.SetNode(config.Node{Name: there})
	g.settled()
	assert.Equal(t, syncs+1, g.rec.count(), "only what settled itself needs")
}
