package kube

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
			require.Equal(t, config.Node{Name: "node-1", Leaving: true}, b.tracker.Node())

			api.put("nodes", newNode("node-1", "a"))
			b.node("it is here", func(n config.Node) bool { return n.Zone == "a" && len(n.Addrs) == 1 && !n.Leaving })
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

// Nothing is handed out before the Node is here: what an earlier run opened at its addresses would be closed for a moment.
func TestNodeIsAwaited(t *testing.T) {
	awaiting := func(c *Config) {
		c.NodeName = "node-1"
		c.Tracker = config.NewTracker(config.Options{Node: config.Node{Name: "node-1"}, AwaitNode: true})
	}
	waitsFor := func(b *rig) func() bool {
		return func() bool { return slices.Equal(b.source.Status().Waiting, []string{"nodes"}) }
	}
	deny := func(api *apiServer, code int, reason metav1.StatusReason) *atomic.Bool {
		var denied atomic.Bool
		denied.Store(true)
		api.refuse = func(w http.ResponseWriter, _ *http.Request, what string) bool {
			if !denied.Load() || !strings.HasSuffix(what, " nodes") {
				return false
			}
			fail(w, code, reason, "not now")
			return true
		}
		return &denied
	}
	for name, change := range map[string]func(*Config){"streamed": func(*Config) {}, "fetched": fetched} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := web(t)
			api.put("nodes", newNode("node-1", "a"))
			denied := deny(api, http.StatusInternalServerError, metav1.StatusReasonInternalError)
			b := follow(t, api, change, awaiting)
			b.fact("all else is here", waitsFor(b))
			require.Nil(t, b.tracker.Take())
			denied.Store(false)
			b.serves("default/web")
			require.Equal(t, "a", b.tracker.Node().Zone)
		})
	}
	t.Run("not if it is forbidden", func(t *testing.T) {
		t.Parallel()
		api := web(t)
		api.put("nodes", newNode("node-1", "a"))
		denied := deny(api, http.StatusForbidden, metav1.StatusReasonForbidden)
		b := follow(t, api, awaiting)
		b.serves("default/web")
		require.Equal(t, []string{"nodes"}, b.source.Status().Waiting)
		denied.Store(false)
		b.node("it is here", func(n config.Node) bool { return n.Zone == "a" })
	})
	t.Run("not if there is none", func(t *testing.T) {
		t.Parallel()
		follow(t, web(t), awaiting).serves("default/web")
		follow(t, web(t), awaiting, func(c *Config) { c.NodeName = "" }).serves("default/web")
	})
}

func TestNoNode(t *testing.T) {
	t.Parallel()
	b := follow(t, web(t))
	b.serves("default/web")
	require.Empty(t, b.source.Status().Node)
	require.Zero(t, b.api.count("nodes"))
}
