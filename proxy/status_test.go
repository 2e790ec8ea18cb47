package proxy

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"redial/config"
	"redial/proxy/intercept"
)

func TestStatusTellsPoolsApart(t *testing.T) {
	g := start(t, testPorts)
	g.tracker.SetNode(config.Node{Name: here})
	l, r := placed{addr: backend(t, "l"), node: here}, placed{addr: backend(t, "r"), node: there}
	g.tracker.SetService(object("web", "198.18.0.1", exposed(30080), local(false, true), func(s *v1.Service) {
		s.Spec.Type = v1.ServiceTypeLoadBalancer
		s.Spec.LoadBalancerSourceRanges = []string{"198.18.128.0/24"}
		s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "198.18.9.9"}}
	}))
	g.place("web", l, r)
	g.settled()
	assert.Equal(t, []string{
		"*:30080/tcp Local node:Cluster", "198.18.0.1:80/tcp Cluster", "198.18.9.9:80/tcp Local node:Cluster [198.18.128.0/24]",
	}, g.unmarked())
	addresses := func(f FrontendStatus) (out []string) {
		for _, b := range f.Backends {
			out = append(out, b.Address+" "+b.State)
		}
		return out
	}
	cluster, ok := g.frontendOf("web", config.ClusterPool, config.IPv4)
	require.True(t, ok)
	ours, ok := g.frontendOf("web", config.LocalPool, config.IPv4)
	require.True(t, ok)
	ranges := []string{"198.18.128.0/24"}
	assert.Equal(t, []VIPStatus{
		{Kind: "ClusterIP", Address: "198.18.0.1", Port: 80},
		{Kind: "LoadBalancerIP", Address: "198.18.9.9", Port: 80, From: "node", Sources: ranges},
		{Kind: "NodePort", Port: 30080, From: "node"},
	}, cluster.VIPs)
	assert.Equal(t, []VIPStatus{
		{Kind: "LoadBalancerIP", Address: "198.18.9.9", Port: 80, From: "elsewhere", Sources: ranges},
		{Kind: "NodePort", Port: 30080, From: "elsewhere"},
	}, ours.VIPs)
	assert.ElementsMatch(t, []string{l.addr.String() + " ready", r.addr.String() + " ready"}, addresses(cluster))
	assert.Equal(t, []string{l.addr.String() + " ready"}, addresses(ours))
	assert.Equal(t, []NoLocal{{Family: config.IPv4}, {Family: config.IPv6}}, g.SyncStatus().NoLocal)

	g.place("web", r)
	g.tracker.SetService(object("other", "198.18.0.2", local(true, false)))
	g.place("other", r)
	g.tracker.SetService(object("idle", "198.18.0.3", local(true, false)))
	g.settled()
	ours, _ = g.frontendOf("web", config.LocalPool, config.IPv4)
	assert.False(t, ours.Serving)
	assert.True(t, ours.VIPs[0].Drops)
	assert.Empty(t, ours.Backends)
	cluster, _ = g.frontendOf("web", config.ClusterPool, config.IPv4)
	assert.False(t, cluster.VIPs[1].Drops, "clients on the node are served")
	idle, _ := g.frontendOf("idle", config.LocalPool, config.IPv4)
	assert.False(t, idle.VIPs[0].Drops, "nobody has endpoints: refused")
	assert.Equal(t, []NoLocal{{Family: config.IPv4, Internal: 1, External: 1}, {Family: config.IPv6}}, g.SyncStatus().NoLocal)
}

// A frontend that cannot be opened takes its own addresses with it, not those of its Service's other one.
func TestFrontendsOfOnePortFailAlone(t *testing.T) {
	g := start(t, intercept.PortRange{First: 63020, Last: 63020})
	g.tracker.SetNode(config.Node{Name: here})
	g.place("web", placed{addr: backend(t, "l"), node: here})
	g.tracker.SetService(object("web", "198.18.0.1", exposed(30080), local(false, true)))
	g.eventually(func() bool { return g.problem("web", ReasonListenFailed) != "" }, "the failure to show")
	assert.Equal(t, []string{"198.18.0.1:80/tcp Cluster"}, g.inForce())
	g.tracker.SetService(object("web", "198.18.0.1", exposed(30080), local(true, true)))
	g.tracker.SetService(object("web", "198.18.0.1", local(true, false)))
	g.eventually(func() bool { return slices.Equal(g.inForce(), []string{"198.18.0.1:80/tcp Local"}) }, "the port to be free for the other")
}
