package config

import (
	"net/netip"
	"slices"
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
