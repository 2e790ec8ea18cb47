package kube

import (
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"redial/config"
)

func newNode(name, zone string) *v1.Node {
	n := &v1.Node{Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "198.18.255.1"}}}}
	n.TypeMeta, n.ObjectMeta = meta1("Node", "v1", name)
	n.Namespace = ""
	n.Labels = map[string]string{v1.LabelTopologyZone: zone}
	return n
}

func (b *rig) node(what string, is func(config.Node) bool) {
	b.t.Helper()
	b.fact(what, func() bool { return is(b.tracker.Node()) })
}

func TestNode(t *testing.T) {
	for name, change := range map[string]func(*Config){"streamed": func(*Config) {}, "fetched": fetched} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := web(t)
			api.put("nodes", newNode("node-2", "elsewhere"))
			b := follow(t, api, change, func(c *Config) { c.NodeName = "node-1" })
			b.serves("default/web")
			b.fact("the missing node is said", func() bool {
				return b.says("no Node object", "node:node-1", "policy Local drops", "--hostname-override") == 1
			})
			require.Equal(t, NodeMissing, b.source.Status().Node)
			require.Equal(t, config.Node{Name: "node-1"}, b.tracker.Node())

			api.put("nodes", newNode("node-1", "a"))
			b.node("it is here", func(n config.Node) bool { return n.Zone == "a" && len(n.Addrs) == 1 })
			b.fact("found", func() bool { return b.source.Status().Node == NodeFound && b.says("Node object is here") == 1 })
			require.Empty(t, b.tracker.Node().PodCIDRs)
			n := newNode("node-1", "b")
			n.Spec.PodCIDRs = []string{"198.18.128.0/24"}
			api.put("nodes", n)
			b.node("it has moved", func(n config.Node) bool { return n.Zone == "b" && len(n.PodCIDRs) == 1 })

			api.remove("nodes", "/node-1", false)
			b.node("it is leaving", func(n config.Node) bool { return n.Leaving })
			require.Equal(t, "b", b.tracker.Node().Zone, "what was known stays in force")
			b.fact("deleted", func() bool { return b.source.Status().Node == NodeDeleted })
			api.put("nodes", newNode("node-1", "b"))
			b.node("it is back", func(n config.Node) bool { return !n.Leaving })

			// Deleted while nobody watched.
			api.remove("nodes", "/node-1", true)
			api.compact()
			api.drop()
			b.node("it is leaving", func(n config.Node) bool { return n.Leaving })
			require.NotEqual(t, "elsewhere", b.tracker.Node().Zone)
		})
	}
}

func TestNoNode(t *testing.T) {
	t.Parallel()
	b := follow(t, web(t))
	b.serves("default/web")
	require.Empty(t, b.source.Status().Node)
	require.Zero(t, b.api.count("nodes"))
}
