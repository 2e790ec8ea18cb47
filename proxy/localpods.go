package proxy

import (
	"net/netip"
	"slices"

	"redial/config"
	"redial/proxy/intercept"
)

// LocalPods say how the packets of this node's pods can be told from those of other nodes (kube-proxy's
// --detect-local-mode). An external traffic policy Local does not concern the clients that they tell. The ways add up;
// with none, only the node's own processes are known to be on it.
type LocalPods struct {
	// Prefixes are ranges of pod addresses. kube-proxy's mode ClusterCIDR gives the range of the whole cluster here: it
	// counts the pods of other nodes as local, since their packets to a NodePort do not come through a load balancer.
	Prefixes []netip.Prefix
	// NodeCIDR adds the ranges that the node allocates from, as far as they are known.
	NodeCIDR bool
	// Interfaces are those that pods' packets come in by: the name of a bridge, or the beginning of names followed by "+".
	Interfaces []string
}

// sources are sorted, so that the same facts always make the same state.
func (l LocalPods) sources(node config.Node) []intercept.PodSource {
	prefixes := slices.Clone(l.Prefixes)
	if l.NodeCIDR {
		prefixes = append(prefixes, node.PodCIDRs...)
	}
	for i, p := range prefixes {
		prefixes[i] = p.Masked()
	}
	slices.SortFunc(prefixes, comparePrefixes)
	var sources []intercept.PodSource
	for _, p := range slices.Compact(prefixes) {
		sources = append(sources, intercept.PodSource{Prefix: p})
	}
	interfaces := slices.Sorted(slices.Values(l.Interfaces))
	for _, name := range slices.Compact(interfaces) {
		sources = append(sources, intercept.PodSource{Interface: name})
	}
	return sources
}
