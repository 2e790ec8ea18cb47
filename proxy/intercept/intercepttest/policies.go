package intercepttest

import (
	"net/netip"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept"
)

// blamed are the VIPs that err says could not be steered. Anything else that it says fails the test.
func (g *rig) blamed(err error) []intercept.VIP {
	g.Helper()
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var vips []intercept.VIP
		for _, e := range joined.Unwrap() {
			vips = append(vips, g.blamed(e)...)
		}
		return vips
	}
	var be *intercept.BindingError
	require.ErrorAs(g, err, &be)
	return []intercept.VIP{be.Binding.VIP}
}

func bad(g *rig) {
	good := g.every()
	require.NoError(g, g.prepare(good))
	g.serve(good)
	multicast := intercept.Binding{VIP: vip("233.252.0.1", 80, intercept.TCP), Listen: good[0].Listen, Owner: "ns/multicast"}
	none := intercept.Binding{VIP: intercept.VIP{Addr: good[0].VIP.Addr, Protocol: intercept.TCP}, Listen: good[0].Listen, Owner: "ns/no-port"}
	all := append([]intercept.Binding{multicast, none}, good...)
	require.NoError(g, g.prepare(all))
	err := g.i.Commit(g.ctx(), intercept.State{Bindings: all})
	require.Error(g, err)
	assert.ElementsMatch(g, []intercept.VIP{multicast.VIP, none.VIP}, g.blamed(err))
	assert.ErrorContains(g, err, "ns/multicast")
	for _, b := range good {
		g.assertServed(g.client, b)
	}
	assert.True(g, g.verify(), "what cannot be is not missed")
}

func sources(g *rig) {
	open, closed := g.served("198.18.100.10", 61010), g.served("198.18.120.6", 61012)
	closed.Sources = []netip.Prefix{netip.MustParsePrefix(podIP4 + "/32")}
	bindings := []intercept.Binding{open, closed}
	require.NoError(g, g.prepare(bindings[:1]))
	g.serve(bindings)
	err := g.i.Commit(g.ctx(), intercept.State{Bindings: bindings})
	g.assertServed(g.client, open)
	g.assertNotServed(g.client, closed)
	if g.limits.ClientsAlike {
		assert.Equal(g, []intercept.VIP{closed.VIP}, g.blamed(err))
		assert.ErrorContains(g, err, podIP4)
		g.assertNotServed(g.pod, closed)
		return
	}
	require.NoError(g, err)
	g.assertServed(g.pod, closed)
}

func restrictedNodePorts(g *rig) {
	open, closed := g.served("198.18.100.10", 61010), g.served("0.0.0.0", 61014)
	closed.VIP.Port = 30080
	closed.Listen = g.bindAddr(closed.VIP, 61014)
	bindings := []intercept.Binding{open, closed}
	require.NoError(g, g.prepare(bindings[:1]))
	g.serve(bindings[:1])
	if !g.limits.ClientsAlike {
		g.serve(bindings[1:])
	}
	for _, state := range []intercept.State{
		{Bindings: bindings, NodePorts: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
		{Bindings: bindings, NodePorts: []netip.Prefix{}},
	} {
		err := g.i.Commit(g.ctx(), state)
		g.assertServed(g.client, open)
		g.assertNotServed(g.client, closed)
		if g.limits.ClientsAlike {
			assert.Equal(g, []intercept.VIP{closed.VIP}, g.blamed(err))
			continue
		}
		require.NoError(g, err)
	}
}

func dropped(g *rig) {
	open, drop := g.served("198.18.100.10", 61010), g.served("198.18.120.6", 61012)
	drop.Listen = netip.AddrPort{}
	bindings := []intercept.Binding{open, drop}
	require.NoError(g, g.prepare(bindings))
	g.serve(bindings[:1])
	require.NoError(g, g.i.Commit(g.ctx(), intercept.State{Bindings: bindings}))
	g.assertServed(g.client, open)
	if g.limits.Refuses {
		_, err := ask(g.client, drop.VIP, patience)
		assert.True(g, refused(err), "%v", err)
	} else {
		assert.False(g, refused(g.assertNotServed(g.client, drop)))
	}
	assert.True(g, g.verify())
}
