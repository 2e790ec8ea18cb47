package config

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Node is the node that is served, as far as serving depends on it. The value is immutable once handed out. A zero Node has
// no local endpoints and no zone.
type Node struct {
	// Name is what endpoints call it; empty means that no endpoint is local.
	Name string
	// Zone is its label topology.kubernetes.io/zone.
	Zone string
	// Addrs are its addresses from status: internal before external ones, in the order of the object. The first of a
	// family is its primary.
	Addrs []netip.Addr
	// PodCIDRs are the ranges of its pods' addresses; empty when nobody allocates any.
	PodCIDRs []netip.Prefix
	// Leaving means that the node is about to be removed, and load balancers should choose others: it is being deleted,
	// or the cluster autoscaler has tainted it (KEP-3836).
	Leaving bool
}

// Equal reports whether n and o are the same in every field.
func (n Node) Equal(o Node) bool {
	return n.Name == o.Name && n.Zone == o.Zone && n.Leaving == o.Leaving &&
		slices.Equal(n.Addrs, o.Addrs) && slices.Equal(n.PodCIDRs, o.PodCIDRs)
}

// taintLeaving is what the cluster autoscaler puts on a node that it is about to remove. Its source has the only constant.
const taintLeaving = "ToBeDeletedByClusterAutoscaler"

// withPrimary returns n with a as the primary address of its family; as it is if a is not valid.
func (n Node) withPrimary(a netip.Addr) Node {
	if a.IsValid() {
		n.Addrs = append([]netip.Addr{a}, slices.DeleteFunc(slices.Clone(n.Addrs), func(o netip.Addr) bool { return o == a })...)
	}
	return n
}

// TranslateNode turns a Node into its value. Addresses that cannot be read, or be those of a node, are left out, and so
// is what is given twice.
func TranslateNode(n *v1.Node) Node {
	out := Node{Name: n.Name, Zone: n.Labels[v1.LabelTopologyZone], Leaving: n.DeletionTimestamp != nil}
	for _, kind := range []v1.NodeAddressType{v1.NodeInternalIP, v1.NodeExternalIP} {
		for _, na := range n.Status.Addresses {
			if na.Type != kind {
				continue
			}
			a, err := parseAddr(na.Address)
			if err == nil && notUnicast(a) == "" && !slices.Contains(out.Addrs, a) {
				out.Addrs = append(out.Addrs, a)
			}
		}
	}
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 {
		cidrs = []string{n.Spec.PodCIDR}
	}
	for _, s := range cidrs {
		if r, err := parsePrefix(s); err == nil && !slices.Contains(out.PodCIDRs, r) {
			out.PodCIDRs = append(out.PodCIDRs, r)
		}
	}
	for _, t := range n.Spec.Taints {
		out.Leaving = out.Leaving || t.Key == taintLeaving
	}
	return out
}
