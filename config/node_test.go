package config

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func newNode(change ...func(*v1.Node)) *v1.Node {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-a", Labels: map[string]string{v1.LabelTopologyZone: "zone-a"}},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{
			{Type: v1.NodeHostName, Address: "node-a"},
			{Type: v1.NodeExternalIP, Address: "198.18.0.1"},
			{Type: v1.NodeInternalIP, Address: "198.18.1.1"},
			{Type: v1.NodeInternalIP, Address: "2001:db8::1"},
		}},
		Spec: v1.NodeSpec{PodCIDR: "198.18.128.0/24", PodCIDRs: []string{"198.18.128.0/24", "2001:db8:1::/64"}},
	}
	for _, c := range change {
		c(n)
	}
	return n
}

func TestTranslateNode(t *testing.T) {
	whole := Node{Name: "node-a", Zone: "zone-a", Addrs: addrs("198.18.1.1", "2001:db8::1", "198.18.0.1"),
		PodCIDRs: prefixes("198.18.128.0/24", "2001:db8:1::/64")}
	with := func(change func(*Node)) Node { n := whole; change(&n); return n }
	for _, c := range []struct {
		name   string
		change func(*v1.Node)
		want   Node
	}{
		{"whole", func(n *v1.Node) {}, whole},
		{"no zone", func(n *v1.Node) { n.Labels = nil }, with(func(n *Node) { n.Zone = "" })},
		{"addresses that cannot be", func(n *v1.Node) {
			n.Status.Addresses = nil
			for _, a := range []string{"", "x", "127.0.0.1", "0.0.0.0", "224.0.0.1", "fe80::1%eth0", "198.18.0.7", "::ffff:198.18.0.7"} {
				n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a},
					v1.NodeAddress{Type: v1.NodeExternalIP, Address: a})
			}
		}, with(func(n *Node) { n.Addrs = addrs("198.18.0.7") })},
		{"only podCIDR", func(n *v1.Node) { n.Spec.PodCIDRs = nil }, with(func(n *Node) { n.PodCIDRs = n.PodCIDRs[:1] })},
		{"no podCIDR", func(n *v1.Node) { n.Spec = v1.NodeSpec{} }, with(func(n *Node) { n.PodCIDRs = nil })},
		{"podCIDRs unmasked, broken, repeated", func(n *v1.Node) {
			n.Spec.PodCIDRs = []string{"198.18.128.9/24", "x", "198.18.128.0/24", "198.18.129.0"}
		}, with(func(n *Node) { n.PodCIDRs = prefixes("198.18.128.0/24") })},
		{"being deleted", func(n *v1.Node) { n.DeletionTimestamp = ptr(metav1.NewTime(time.Unix(1, 0))) }, with(func(n *Node) { n.Leaving = true })},
		{"to be deleted", func(n *v1.Node) {
			n.Spec.Taints = []v1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Value: "1", Effect: "NoSchedule"}, {Key: "x"}}
		}, with(func(n *Node) { n.Leaving = true })},
		{"tainted otherwise", func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "DeletionCandidateOfClusterAutoscaler"}} }, whole},
		{"nothing", func(n *v1.Node) { *n = v1.Node{} }, Node{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			object := newNode(c.change)
			before := object.DeepCopy()
			require.Equal(t, c.want, TranslateNode(object))
			require.Equal(t, before, object)
		})
	}
}

// A field that Equal forgets is a change of the node that nobody hears of.
func TestNodeEqualComparesEveryField(t *testing.T) {
	for i := range reflect.TypeFor[Node]().NumField() {
		var n Node
		switch f := reflect.ValueOf(&n).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		default:
			t.Fatal("no other value for ", f.Type())
		}
		require.False(t, n.Equal(Node{}), "%+v", n)
		require.True(t, n.Equal(n))
	}
}

func TestSetNode(t *testing.T) {
	tr := NewTracker(Options{Node: Node{Name: "node-a"}})
	require.Equal(t, Node{Name: "node-a"}, tr.Node())
	tr.SetNode(Node{Name: "node-a", Zone: "zone-a"})
	require.False(t, signalled(tr), "nothing is delivered yet")
	tr.ServicesDelivered()
	tr.EndpointsDelivered()
	require.True(t, signalled(tr))
	require.Empty(t, tr.Take())

	tr.SetNode(Node{Name: "node-a", Zone: "zone-b", PodCIDRs: []netip.Prefix{}})
	require.True(t, signalled(tr))
	require.Empty(t, tr.Take(), "no Service has changed")
	require.Equal(t, "zone-b", tr.Node().Zone)
	tr.SetNode(Node{Name: "node-a", Zone: "zone-b"})
	require.False(t, signalled(tr), "the same again")

	release := tr.Hold()
	tr.SetNode(Node{Name: "node-a"})
	require.False(t, signalled(tr))
	release()
	require.True(t, signalled(tr))
}
