package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/config"
	"redial/proxy"
)

// With a traffic policy Local, what becomes of clients depends on where they are.
func TestStatusOfLocalPolicies(t *testing.T) {
	t.Parallel()
	vips := func(from string, drops bool) []proxy.VIPStatus {
		return []proxy.VIPStatus{
			{Kind: "NodePort", Port: 30080, From: from, Drops: drops},
			{Kind: "LoadBalancerIP", Address: "198.18.9.9", Port: 80, From: from, Drops: drops},
		}
	}
	front := func(pool config.Pool, vips []proxy.VIPStatus, serving bool) proxy.FrontendStatus {
		return proxy.FrontendStatus{Family: config.IPv4, Pool: pool, ProxyPort: 61000, VIPs: vips, Serving: serving}
	}
	s := status{Interception: interceptIPTables}
	s.Services = []proxy.ServiceStatus{{Namespace: "default", Name: "web", Ports: []proxy.PortStatus{{
		Protocol: config.TCP, Port: 80, Fronts: []proxy.FrontendStatus{
			front(config.ClusterPool, vips("node", false), true),
			front(config.LocalPool, vips("elsewhere", true), false),
			front(config.LocalPool, vips("elsewhere", false), false),
		},
	}}}}
	var out strings.Builder
	require.NoError(t, s.print(&out, false, time.Now()))
	assertLine(t, `default/web +80/TCP +\*:30080\(node\),198\.18\.9\.9\(node\) +61000 +served .*`, out.String())
	assertLine(t, `default/web +80/TCP +\*:30080\(elsewhere\),198\.18\.9\.9\(elsewhere\) +61000 +dropped .*`, out.String())
	assertLine(t, `default/web +80/TCP +\*:30080\(elsewhere\),198\.18\.9\.9\(elsewhere\) +61000 +refused .*`, out.String())
	assert.NotContains(t, out.String(), "PROBLEMS")
}
