package proxy

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/config"
	"redial/proxy/intercept"
)

func name(service, port string) config.ServicePortName {
	return config.ServicePortName{Service: config.ServiceName{Namespace: "default", Name: service}, Port: port, Protocol: config.TCP}
}

// svc is a Service with one TCP port, "http", on 80.
func svc(service, clusterIP string, change ...func(*config.ServicePort)) *config.Service {
	port := config.ServicePort{
		Name: name(service, "http"), Port: 80,
		ClusterIPs: []netip.Addr{netip.MustParseAddr(clusterIP)},
	}
	for _, c := range change {
		c(&port)
	}
	return &config.Service{Name: port.Name.Service, Ports: []config.ServicePort{port}}
}

func nodePort(n uint16) func(*config.ServicePort) {
	return func(p *config.ServicePort) { p.NodePort, p.NodePortFamilies = n, []config.Family{config.IPv4} }
}

func wantedOf(all ...*config.Service) services {
	w := services{}
	for _, s := range all {
		w[s.Name] = s
	}
	return w
}

func vipNames(p plan, service string) []string {
	var out []string
	for _, key := range p.keys() {
		if key.name.Service.Name == service {
			for _, v := range p.frontends[key] {
				out = append(out, v.kind+" "+v.String())
			}
		}
	}
	return out
}

func TestPlanListsEveryKindOfAddress(t *testing.T) {
	s := svc("web", "198.18.0.1", nodePort(30080), func(p *config.ServicePort) {
		p.ClusterIPs = append(p.ClusterIPs, netip.MustParseAddr("2001:db8::1"))
		p.NodePortFamilies = config.Families
		p.ExternalIPs = []netip.Addr{netip.MustParseAddr("198.18.9.9"), netip.MustParseAddr("198.18.0.1")}
		p.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("2001:db8::9")}
	})
	p := buildPlan(wantedOf(s), nil)
	assert.Empty(t, p.problems)
	assert.Equal(t, []string{
		"ClusterIP 198.18.0.1:80/tcp", "ExternalIP 198.18.9.9:80/tcp", "NodePort *:30080/tcp",
		"ClusterIP [2001:db8::1]:80/tcp", "LoadBalancerIP [2001:db8::9]:80/tcp", "NodePort *:30080/tcp",
	}, vipNames(p, "web"), "one frontend per family; an address that is there twice counts once")
	assert.Len(t, p.frontends, 2)
	assert.Len(t, p.vips(), 6)
}

func TestPlanConflicts(t *testing.T) {
	a, b := svc("a", "198.18.0.1", nodePort(30080)), svc("b", "198.18.0.2", nodePort(30080))
	contested := intercept.VIP{Addr: netip.IPv4Unspecified(), Port: 30080, Protocol: intercept.TCP}

	p := buildPlan(wantedOf(a, b), nil)
	assert.Equal(t, name("a", "http"), p.owners[contested], "the first by name, for want of anything better")
	assert.Equal(t, []string{"ClusterIP 198.18.0.2:80/tcp"}, vipNames(p, "b"), "the loser keeps the rest")
	require.Len(t, p.problems[b.Name], 1)
	assert.Equal(t, ReasonAddressConflict, p.problems[b.Name][0].Reason)
	assert.Contains(t, p.problems[b.Name][0].Message, "default/a:http/TCP")
	assert.Empty(t, p.problems[a.Name])

	incumbent := buildPlan(wantedOf(b), nil)
	p = buildPlan(wantedOf(a, b), incumbent.owners)
	assert.Equal(t, name("b", "http"), p.owners[contested], "a newcomer does not take what works")

	older := *b
	a.Created, older.Created = time.Unix(200, 0), time.Unix(100, 0)
	p = buildPlan(wantedOf(a, &older), nil)
	assert.Equal(t, name("b", "http"), p.owners[contested], "the older Service")

	p = buildPlan(wantedOf(a), p.owners)
	assert.Equal(t, name("a", "http"), p.owners[contested], "free again")
	assert.Empty(t, p.problems)
}

// What others call their external address does not take a ClusterIP away: neither an older Service does, after a restart,
// nor one that had the address before it was allocated.
func TestPlanLeavesClusterIPsToTheirServices(t *testing.T) {
	a := svc("a", "198.18.0.1", func(p *config.ServicePort) { p.ExternalIPs = []netip.Addr{netip.MustParseAddr("198.18.0.2")} })
	b := svc("b", "198.18.0.2")
	a.Created, b.Created = time.Unix(100, 0), time.Unix(200, 0)
	before := buildPlan(wantedOf(a), nil)
	require.Equal(t, []string{"ClusterIP 198.18.0.1:80/tcp", "ExternalIP 198.18.0.2:80/tcp"}, vipNames(before, "a"))
	for _, current := range []owners{nil, before.owners, buildPlan(wantedOf(b), nil).owners} {
		p := buildPlan(wantedOf(a, b), current)
		assert.Equal(t, []string{"ClusterIP 198.18.0.2:80/tcp"}, vipNames(p, "b"))
		assert.Equal(t, []string{"ClusterIP 198.18.0.1:80/tcp"}, vipNames(p, "a"))
		require.Len(t, p.problems[a.Name], 1)
		assert.Contains(t, p.problems[a.Name][0].Message, "ExternalIP 198.18.0.2:80/tcp belongs to default/b:http/TCP")
	}
	// Manifests may have two of one ClusterIP.
	c := svc("c", "198.18.0.2")
	p := buildPlan(wantedOf(b, c), buildPlan(wantedOf(c), nil).owners)
	assert.Equal(t, []string{"ClusterIP 198.18.0.2:80/tcp"}, vipNames(p, "c"), "a newcomer does not take what works")
	assert.Empty(t, vipNames(p, "b"))
}

func TestPlanSharesOneNumberBetweenServices(t *testing.T) {
	p := buildPlan(wantedOf(svc("a", "198.18.0.1"), svc("b", "198.18.0.2")), nil)
	assert.Empty(t, p.problems, "port 80 of two addresses is no conflict")
	assert.Len(t, p.frontends, 2)
}

func TestPlanRefusesWhatIsNotRelayed(t *testing.T) {
	s := svc("dns", "198.18.0.1")
	udp := s.Ports[0]
	udp.Name.Protocol = config.UDP
	sctp := s.Ports[0]
	sctp.Name.Protocol = config.SCTP
	s.Ports = append(s.Ports, udp, sctp)
	p := buildPlan(wantedOf(s), nil)
	assert.Equal(t, []string{"ClusterIP 198.18.0.1:80/tcp", "ClusterIP 198.18.0.1:80/udp"}, vipNames(p, "dns"),
		"one number in two protocols is two addresses")
	require.Len(t, p.problems[s.Name], 1)
	assert.Equal(t, ReasonUnsupportedProtocol, p.problems[s.Name][0].Reason)
}

func TestSameShape(t *testing.T) {
	a := svc("web", "198.18.0.1")
	same := svc("web", "198.18.0.1", func(p *config.ServicePort) {
		p.Affinity = time.Hour
		p.Settings = &config.Settings{Scheduler: "lc"}
		p.Endpoints = []config.Endpoint{{Addr: netip.MustParseAddrPort("198.18.1.1:8080")}}
	})
	headless := &config.Service{Name: a.Name, Skipped: "headless"}
	assert.True(t, sameShape(a, same), "endpoints, affinity and settings need no sync")
	assert.False(t, sameShape(a, svc("web", "198.18.0.2")))
	assert.False(t, sameShape(a, svc("web", "198.18.0.1", nodePort(30000))))
	assert.False(t, sameShape(a, nil))
	assert.False(t, sameShape(headless, a))
	assert.True(t, sameShape(nil, headless))
}
