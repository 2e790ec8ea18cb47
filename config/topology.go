package config

import (
	"net/netip"
	"slices"
)

// Pool is which of a Service port's endpoints clients are spread over. Which pool is whose is up to the traffic policies.
type Pool string

const (
	// ClusterPool are the endpoints of the whole cluster, less those that topology hints keep for others.
	ClusterPool Pool = "Cluster"
	// LocalPool are the endpoints on this node.
	LocalPool Pool = "Local"
)

// Usable returns the endpoints of one family and pool that may take new traffic, sorted, without duplicates: those that
// are ready or, if no endpoint is, those that still serve while they terminate, so that a rollout that takes all pods down
// at once does not refuse what the old ones could still answer (KEP-1669). Nil means that there is none.
//
// Families and pools fall back independently of each other. It is a pure function of its arguments and keeps none.
func Usable(eps []Endpoint, family Family, pool Pool, node Node) []netip.AddrPort {
	usable := pick(eps, family, func(e Endpoint) bool { return e.Ready })
	if len(usable) == 0 {
		usable = pick(eps, family, func(e Endpoint) bool { return e.Serving && e.Terminating })
	}
	return usable
}

func pick(eps []Endpoint, family Family, wanted func(Endpoint) bool) []netip.AddrPort {
	var out []netip.AddrPort
	for _, e := range eps {
		if FamilyOf(e.Addr.Addr()) == family && wanted(e) {
			out = append(out, e.Addr)
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}
