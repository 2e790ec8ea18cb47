// Package intercepttest is the conformance suite of [intercept.Interceptor]: real packets, from outside, from a pod and from
// the node itself, in a network namespace per test. What a back end declares in [intercept.Limits] is held against it: it
// then has to refuse what it cannot do.
//
//	func TestConformance(t *testing.T) {
//		intercepttest.Run(t, intercepttest.Backend{New: ..., Dump: ..., Damage: ..., Writes: ...})
//	}
package intercepttest

import (
	"context"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

// Backend is what is tested.
type Backend struct {
	// New makes one as a new process would. It is called several times on one node, one after the other.
	New func(*testing.T) intercept.Interceptor
	// Dump is a shell command that prints all that the back end may write, in the same words for the same content.
	Dump string
	// Damage are shell commands, each of which breaks what [Every] has in force.
	Damage []string
	// Harmless are shell commands that do not.
	Harmless []string
	// Writes is how often the kernel was changed.
	Writes func(intercept.Interceptor) int
	// Shared has VIPs of TCP share listeners, by a back end that is an [intercept.Sharer].
	Shared bool
	// ListenControl prepares listening sockets before they are bound; may be nil.
	ListenControl func(fd int, addr netip.AddrPort) error
}

// Run runs the suite. Each test has a process and a network of its own.
func Run(t *testing.T, b Backend) {
	for name, test := range map[string]func(*rig){
		"every kind of VIP":             everyKind,
		"commit removes":                commitRemoves,
		"unchanged is not written":      unchanged,
		"damage is noticed and healed":  damage,
		"nothing is left":               cleanup,
		"a new process takes over":      restart,
		"what is bad harms nobody else": bad,
		"sources":                       sources,
		"restricted NodePorts":          restrictedNodePorts,
		"dropped":                       dropped,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lab.Run(t, func(t *testing.T, node *lab.Host) { test(newRig(t, node, b)) })
		})
	}
}

// rig is a node with a pod and a client, and a back end.
type rig struct {
	*testing.T
	Backend
	node, pod, client *lab.Host
	i                 intercept.Interceptor
	listeners         map[socket]io.Closer
	limits            intercept.Limits
}

func newRig(t *testing.T, node *lab.Host, b Backend) *rig {
	pod, err := node.AddHost("pod", podIP4+"/24", podIP6+"/64")
	require.NoError(t, err)
	client, err := node.AddHost("client", clientIP4+"/24", clientIP6+"/64")
	require.NoError(t, err)
	g := &rig{T: t, Backend: b, node: node, pod: pod, client: client, listeners: map[socket]io.Closer{}}
	g.i = b.New(t)
	g.limits = intercept.LimitsOf(g.i, false)
	return g
}

func (g *rig) ctx() context.Context { return g.Context() }

// steer prepares, listens and commits, as the proxy does.
func (g *rig) steer(bindings []intercept.Binding) {
	g.Helper()
	require.NoError(g, g.prepare(bindings))
	require.NoError(g, g.i.Commit(g.ctx(), intercept.State{Bindings: bindings}))
}

func (g *rig) prepare(bindings []intercept.Binding) error {
	var vips []intercept.VIP
	for _, b := range bindings {
		vips = append(vips, b.VIP)
	}
	return g.i.Prepare(g.ctx(), vips)
}

func (g *rig) dump() string {
	g.Helper()
	return g.sh(g.Dump)
}

// assertSame compares two dumps line by line, whatever the order.
func (g *rig) assertSame(want, got string, about ...any) {
	g.Helper()
	missing, extra := []string{}, []string{}
	count := map[string]int{}
	for line := range strings.Lines(want) {
		count[line]++
	}
	for line := range strings.Lines(got) {
		count[line]--
	}
	for line, n := range count {
		if n > 0 {
			missing = append(missing, line)
		} else if n < 0 {
			extra = append(extra, line)
		}
	}
	assert.Empty(g, missing, about...)
	assert.Empty(g, extra, about...)
}

func (g *rig) sh(line string) string {
	g.Helper()
	out, err := g.node.Output("sh", "-ec", line)
	require.NoError(g, err)
	return out
}

func (g *rig) verify() bool {
	g.Helper()
	ok, err := g.i.Verify(g.ctx())
	require.NoError(g, err)
	return ok
}

func (g *rig) hosts() []*lab.Host { return []*lab.Host{g.client, g.pod, g.node} }

func everyKind(g *rig) {
	bindings := g.every()
	require.NoError(g, g.prepare(bindings))
	g.serve(bindings)
	require.NoError(g, g.i.Commit(g.ctx(), intercept.State{Bindings: bindings}))
	for _, h := range g.hosts() {
		for _, b := range bindings {
			g.assertServed(h, b)
		}
	}
}

func commitRemoves(g *rig) {
	bindings := g.every()
	require.NoError(g, g.prepare(bindings))
	g.serve(bindings)
	require.NoError(g, g.i.Commit(g.ctx(), intercept.State{Bindings: bindings}))
	var kept, gone []intercept.Binding
	for n, b := range bindings {
		// What the node has by itself answers in any case.
		if n%2 == 0 || b.VIP.NodePort() || b.VIP.Addr == netip.MustParseAddr(nodeIP4) || b.VIP.Addr == netip.MustParseAddr(nodeIP6) {
			kept = append(kept, b)
		} else {
			gone = append(gone, b)
		}
	}
	g.steer(kept)
	for _, b := range gone {
		// Who listens on the VIP itself ends with it. Other listeners are left, to see that nobody comes to them.
		if b.Listen == netip.AddrPortFrom(b.VIP.Addr, b.VIP.Port) {
			g.listeners[socket{b.VIP.Protocol, b.Listen}].Close()
		}
	}
	after := g.dump()
	for _, b := range kept {
		g.assertServed(g.client, b)
	}
	require.NotEmpty(g, gone)
	for _, b := range gone {
		g.assertNotServed(g.client, b)
	}
	// As if the others had never been.
	require.NoError(g, g.i.Cleanup(g.ctx()))
	g.i = g.New(g.T)
	g.steer(kept)
	g.assertSame(g.dump(), after)
}

func unchanged(g *rig) {
	bindings := g.every()
	g.steer(bindings)
	writes := g.Writes(g.i)
	require.NotZero(g, writes)
	for range 3 {
		g.steer(bindings)
		assert.True(g, g.verify())
	}
	assert.Equal(g, writes, g.Writes(g.i))
}

func damage(g *rig) {
	bindings := g.every()
	assert.False(g, g.verify(), "nothing was committed yet")
	g.steer(bindings)
	require.True(g, g.verify())
	whole := g.dump()
	for _, line := range g.Harmless {
		g.sh(line)
		assert.True(g, g.verify(), line)
	}
	for _, line := range g.Damage {
		g.sh(line)
		assert.False(g, g.verify(), line)
		assert.False(g, g.verify(), "%s: noticed only once", line)
		require.NoError(g, g.i.Commit(g.ctx(), intercept.State{Bindings: bindings}), line)
		assert.True(g, g.verify(), line)
		g.assertSame(whole, g.dump(), line)
	}
}

func cleanup(g *rig) {
	before := g.dump()
	require.NoError(g, g.i.Cleanup(g.ctx()), "there is nothing yet")
	g.steer(g.every())
	require.NotEqual(g, before, g.dump())
	require.NoError(g, g.i.Cleanup(g.ctx()))
	g.assertSame(before, g.dump())
	assert.False(g, g.verify())
	g.steer(g.every())
	next := g.New(g.T)
	require.NoError(g, next.Cleanup(g.ctx()))
	g.assertSame(before, g.dump(), "what another process left")
	require.NoError(g, next.Cleanup(g.ctx()), "there is nothing any more")
	// And it can be had again.
	g.i = next
	g.steer(g.every())
	assert.True(g, g.verify())
}

func restart(g *rig) {
	bindings := g.every()
	require.NoError(g, g.prepare(bindings))
	g.serve(bindings)
	gone := bind("198.18.130.1", 80, intercept.TCP, 1)
	gone.Listen = g.bindAddr(gone.VIP, 61099)
	require.NoError(g, g.i.Commit(g.ctx(), intercept.State{Bindings: append([]intercept.Binding{gone}, bindings...)}))
	g.i = g.New(g.T)
	for s, l := range g.listeners {
		g.share(s, l)
	}
	for _, b := range bindings {
		g.assertServed(g.client, b)
	}
	require.NoError(g, g.prepare(bindings))
	for _, b := range bindings {
		g.assertServed(g.client, b)
	}
	require.NoError(g, g.i.Commit(g.ctx(), intercept.State{Bindings: bindings}))
	for _, b := range bindings {
		g.assertServed(g.client, b)
	}
	after := g.dump()
	require.NoError(g, g.i.Cleanup(g.ctx()))
	g.i = g.New(g.T)
	g.steer(bindings)
	g.assertSame(g.dump(), after, "the predecessor's VIP is gone")
}
