package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A node that steers without netfilter has one route for each range of the cluster's ServiceCIDR objects, with no more
// rights than kube-proxy's role has.
func TestServiceCIDRsAreLocal(t *testing.T) {
	s := parallel(t)
	if !node1.IsRedial() {
		t.Skip("only redial steers without netfilter")
	}
	svc := s.service("web")
	s.deploy("web", 2)
	local := ownNode(t, "routes", "--interception=local")
	reaches(t, local.Host, vips(svc), names(s.pods("web"))...)
	steered := strings.Split(serviceCIDRs, ",")
	awaitRoutes(t, local, steered...)

	const more = "198.19.200.0/24"
	const held = "example.com/held"
	cidrs := s.api.NetworkingV1().ServiceCIDRs()
	_, err := cidrs.Create(t.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, Finalizers: []string{held}},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{more}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	awaitRoutes(t, local, append(steered, more)...)

	// Addresses of one that is being deleted may be in use.
	require.NoError(t, cidrs.Delete(t.Context(), s.name, metav1.DeleteOptions{}))
	other := s.service("other")
	s.deploy("other", 1)
	reaches(t, local.Host, vips(other), names(s.pods("other"))...)
	require.Contains(t, routes(t, local), more)
	none, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": nil}})
	require.NoError(t, err)
	_, err = cidrs.Patch(t.Context(), s.name, types.MergePatchType, none, metav1.PatchOptions{})
	require.NoError(t, err)
	awaitRoutes(t, local, steered...)
	reaches(t, local.Host, vips(svc), names(s.pods("web"))...)
}

// routes are the destinations that the node's proxy has made local.
func routes(t *testing.T, n *Node) []string {
	t.Helper()
	out, err := n.Host.Output("sh", "-ec", "ip -4 route show table local proto 214; ip -6 route show table local proto 214")
	require.NoError(t, err)
	found := map[string]bool{}
	for line := range strings.Lines(out) {
		found[strings.Fields(line)[1]] = true
	}
	return slices.Sorted(maps.Keys(found))
}

func awaitRoutes(t *testing.T, n *Node, want ...string) {
	t.Helper()
	want = slices.Sorted(slices.Values(want))
	eventually(t, fmt.Sprintf("%s has routes to %v", n.Name, want), func() error {
		if have := routes(t, n); !slices.Equal(have, want) {
			return fmt.Errorf("it has %v", have)
		}
		return nil
	})
}
