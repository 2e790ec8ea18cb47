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
	// LocalPool are the endpoints on this node. Topology hints do not concern it: Local is the stricter wish already.
	LocalPool Pool = "Local"
)

// Usable returns the endpoints of one family and pool that may take new traffic, sorted, without duplicates: those that
// are ready or, if no endpoint is, those that still serve while they terminate, so that a rollout that takes all pods down
// at once does not refuse what the old ones could still answer (KEP-1669). Nil means that there is none.
//
// Families and pools fall back independently of each other. Of the ClusterPool nil means that no endpoint is left
// anywhere in the cluster; if only the LocalPool is nil, other nodes have some. It is a pure function of its arguments and
// keeps none.
func Usable(eps []Endpoint, family Family, pool Pool, node Node) []netip.AddrPort {
	within := func(Endpoint) bool { return true }
	if pool == LocalPool {
		within = func(e Endpoint) bool { return node.Name != "" && e.Place().NodeName == node.Name }
	}
	ready := pick(eps, family, func(e Endpoint) bool { return e.Ready && within(e) })
	if len(ready) == 0 {
		return addrsOf(pick(eps, family, func(e Endpoint) bool { return e.Serving && e.Terminating && within(e) }))
	}
	if pool != LocalPool {
		ready = hinted(ready, node)
	}
	return addrsOf(ready)
}

// Serving returns the endpoints of one family that still answer the clients they have: those that terminate are among them,
// and those that hints, readiness or policies keep new traffic from. UDP clients stay with them, as TCP connections do;
// kube-proxy leaves the flows of serving endpoints alone likewise (CleanStaleEntries). Nil means that there is none. It is
// a pure function of its arguments and keeps none.
func Serving(eps []Endpoint, family Family) []netip.AddrPort {
	return addrsOf(pick(eps, family, func(e Endpoint) bool { return e.Serving }))
}

func pick(eps []Endpoint, family Family, wanted func(Endpoint) bool) []Endpoint {
	var out []Endpoint
	for _, e := range eps {
		if FamilyOf(e.Addr.Addr()) == family && wanted(e) {
			out = append(out, e)
		}
	}
	return out
}

// hinted returns those of the ready endpoints that are meant for clients on node, or all.
//
// Hints are a plan for the whole Service: where one ready endpoint has none the plan is half made or half withdrawn, and
// where none is for this node or zone the plan forgot it (KEP-2433). Following it then would overload some endpoints or
// reach none. The node is asked before the zone, as spec.trafficDistribution PreferSameNode gives both (KEP-3015).
func hinted(ready []Endpoint, node Node) []Endpoint {
	for _, hint := range []struct {
		of   func(Endpoint) Names
		name string
	}{
		{func(e Endpoint) Names { return e.Place().ForNodes }, node.Name},
		{func(e Endpoint) Names { return e.Place().ForZones }, node.Zone},
	} {
		if slices.ContainsFunc(ready, func(e Endpoint) bool { return hint.of(e) == "" }) {
			continue
		}
		mine := slices.DeleteFunc(slices.Clone(ready), func(e Endpoint) bool { return !hint.of(e).Has(hint.name) })
		if len(mine) > 0 {
			return mine
		}
	}
	return ready
}

func addrsOf(eps []Endpoint) []netip.AddrPort {
	if len(eps) == 0 {
		return nil
	}
	out := make([]netip.AddrPort, len(eps))
	for i, e := range eps {
		out[i] = e.Addr
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}
