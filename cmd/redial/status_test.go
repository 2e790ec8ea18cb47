package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/config"
	"redial/proxy"
	"redial/proxy/relay"
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

// What deserves attention is told in the line of the Service, and nothing where there is nothing.
func TestStatusNotes(t *testing.T) {
	t.Parallel()
	out := &proxy.EjectionStatus{}
	ready := func(e *proxy.EjectionStatus) proxy.BackendStatus {
		return proxy.BackendStatus{State: proxy.StateReady, Ejection: e}
	}
	unused := proxy.BackendStatus{State: proxy.StateUnused}
	limited := proxy.PortStatus{Limit: &relay.LimitStatus{Max: 5, Used: 5, Waiting: 3}}
	for _, tt := range []struct {
		port  proxy.PortStatus
		front proxy.FrontendStatus
		want  string
	}{
		{front: proxy.FrontendStatus{Backends: []proxy.BackendStatus{ready(nil), unused}, Stats: relay.Stats{Accepted: 9, Hedges: 1, Resets: 1}}},
		{front: proxy.FrontendStatus{Backends: []proxy.BackendStatus{ready(out), ready(nil)}}, want: "1 ejected"},
		{front: proxy.FrontendStatus{Backends: []proxy.BackendStatus{ready(out), unused}}, want: "ALL BACKENDS EJECTED"},
		{port: limited, want: "at its limit of 5, 3 waiting"},
		{
			front: proxy.FrontendStatus{
				Stats:    relay.Stats{Limited: 5, QueueTimeouts: 2, ShareWaits: 1, Strays: 3, FDWaits: 4, AcceptErrors: 6, Evicted: 7},
				Balancer: proxy.BalancerStatus{RetriesRefused: 8, Evictions: 9},
			},
			want: "3 refused by a limit, 2 waited too long, waited for a share of all connections (1 times), 3 reset as not meant for it, 4 waited for descriptors, " +
				"6 accept errors, 7 sessions evicted, 8 retries refused, 9 clients' affinity forgotten",
		},
	} {
		assert.Equal(t, tt.want, notes(tt.port, tt.front))
	}
}

func TestLastError(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	ejected := func(until time.Duration, times int) proxy.BackendStatus {
		return proxy.BackendStatus{Ejection: &proxy.EjectionStatus{Since: now.Add(-90 * time.Second), Until: now.Add(until), Times: times, Error: "refused"}}
	}
	assert.Equal(t, "-", lastError(proxy.BackendStatus{}, now))
	assert.Equal(t, "ejected for 1m30s, tested in 2.3s: refused", lastError(ejected(2345*time.Millisecond, 1), now))
	assert.Equal(t, "ejected for 1m30s, 4 times in a row, being tested: refused", lastError(ejected(-time.Millisecond, 4), now))
	then := now.Add(-time.Minute)
	assert.Equal(t, "1m0s ago: timeout", lastError(proxy.BackendStatus{LastTime: &then, LastError: "timeout"}, now))
}
