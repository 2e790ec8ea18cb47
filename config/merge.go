package config

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// merge puts the endpoints of all sets behind the ports of svc, which was translated without any, and returns a new
// value. The sets are in no particular order; the result does not depend on it.
func merge(svc *Service, sets []*endpointSet) *Service {
	out := *svc
	p := problems(slices.Clone(svc.Problems))
	if len(svc.Ports) > 0 {
		out.Ports = slices.Clone(svc.Ports)
		var strangers map[netip.Addr]struct{}
		asked := out.Ports[0].Settings.Value()
		weights := asked.Weights.weighting()
		unequal := false
		for i := range out.Ports {
			port := &out.Ports[i]
			var matched bool
			port.Endpoints, matched = portEndpoints(port.Name, sets, svc.IPFamilies, weights, &strangers)
			unequal = unequal || differ(port.Endpoints)
			if !matched && hasTargets(sets) {
				p.addPort(port.Name.Port, ReasonPortNameMismatch,
					"no endpoint port is named %q with protocol %s; the Service has %s, its endpoints have %s: name them alike",
					port.Name.Port, port.Name.Protocol, portNames(servicePortKeys(out.Ports)), portNames(endpointPortKeys(sets)))
			}
		}
		if unequal && slices.Contains(unweighted, asked.Scheduler) {
			p.add(ReasonUnusedAnnotation, "endpoints have weights that differ, and to the scheduler %s in the annotation all but 0 are "+
				"alike: choose one that weighs them, such as wrr or wlc", asked.Scheduler)
		}
		if len(strangers) > 0 {
			first := slices.MinFunc(slices.Collect(maps.Keys(strangers)), netip.Addr.Compare)
			p.add(ReasonWrongFamily, "%d endpoint addresses, the first %s, are of a family the Service does not have: "+
				"they are left out", len(strangers), first)
		}
	}
	var own []Problem
	for _, s := range sets {
		own = append(own, s.problems...)
	}
	slices.SortFunc(own, func(a, b Problem) int { return cmp.Compare(a.Message, b.Message) })
	if svc.Skipped == "" {
		p = append(p, own...)
	}
	out.Problems = p
	return &out
}

// portEndpoints returns the endpoints of one Service port, sorted by address, and whether any set with targets names the
// port. Ports match by name and protocol alone (the number is the endpoint's own business, targetPort the controller's).
func portEndpoints(name ServicePortName, sets []*endpointSet, families []Family, weights weighting, strangers *map[netip.Addr]struct{}) ([]Endpoint, bool) {
	var out []Endpoint
	matched := false
	for _, s := range sets {
		for _, part := range s.parts {
			if len(part.targets) == 0 {
				continue
			}
			for _, ep := range part.ports {
				if ep.name != name.Port || ep.protocol != name.Protocol {
					continue
				}
				matched = true
				if ep.number == 0 {
					continue
				}
				out = slices.Grow(out, len(part.targets))
				for _, t := range part.targets {
					if !slices.Contains(families, FamilyOf(t.addr)) {
						if *strangers == nil {
							*strangers = map[netip.Addr]struct{}{}
						}
						(*strangers)[t.addr] = struct{}{}
						continue
					}
					out = append(out, Endpoint{Addr: netip.AddrPortFrom(t.addr, ep.number),
						Ready: t.ready, Serving: t.serving, Terminating: t.terminating, Weight: weights.of(t, s.weight), At: t.at})
				}
			}
		}
	}
	// The key is ip:port, not the ip: two host-network pods of one node are two endpoints. Of several entries for one
	// (a slice being moved is briefly listed twice) the most available wins, so that no slice can talk down another.
	slices.SortFunc(out, compareEndpoints)
	out = slices.CompactFunc(out, func(a, b Endpoint) bool { return a.Addr == b.Addr })
	return slices.Clip(out), matched
}

// compareEndpoints sorts by address, then the preferred of several entries for one address first.
func compareEndpoints(a, b Endpoint) int {
	if c := a.Addr.Compare(b.Addr); c != 0 {
		return c
	}
	p, q := a.Place(), b.Place()
	return cmp.Or(
		trueFirst(a.Ready, b.Ready),
		trueFirst(a.Serving, b.Serving),
		trueFirst(b.Terminating, a.Terminating),
		// An entry that knows its node is better than one that does not. So is one with hints: a single endpoint without
		// has those of all others ignored (see hinted), and the Service would leave its zones for the time of the move.
		trueFirst(p.NodeName != "", q.NodeName != ""),
		trueFirst(p.ForNodes != "", q.ForNodes != ""),
		trueFirst(p.ForZones != "", q.ForZones != ""),
		// So is one with a weight. Of two the greater counts, as one slice must not talk down another.
		trueFirst(a.Weight.IsSet(), b.Weight.IsSet()),
		cmp.Compare(b.Weight.Or(1), a.Weight.Or(1)),
		// After that, only determinism matters.
		cmp.Compare(p.NodeName, q.NodeName),
		cmp.Compare(p.ForNodes, q.ForNodes),
		cmp.Compare(p.ForZones, q.ForZones),
	)
}

// differ reports whether weights are more than a choice of which endpoints to use at all.
func differ(eps []Endpoint) bool {
	var first uint16
	for _, e := range eps {
		switch w := e.Weight.Or(1); {
		case first == 0:
			first = w
		case w != 0 && w != first:
			return true
		}
	}
	return false
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func hasTargets(sets []*endpointSet) bool {
	return slices.ContainsFunc(sets, func(s *endpointSet) bool {
		return slices.ContainsFunc(s.parts, func(p endpointPart) bool { return len(p.targets) > 0 })
	})
}

type portKey struct {
	name     string
	protocol Protocol
}

func servicePortKeys(ports []ServicePort) map[portKey]struct{} {
	out := map[portKey]struct{}{}
	for _, p := range ports {
		out[portKey{p.Name.Port, p.Name.Protocol}] = struct{}{}
	}
	return out
}

func endpointPortKeys(sets []*endpointSet) map[portKey]struct{} {
	out := map[portKey]struct{}{}
	for _, s := range sets {
		for _, part := range s.parts {
			for _, p := range part.ports {
				if len(part.targets) > 0 {
					out[portKey{p.name, p.protocol}] = struct{}{}
				}
			}
		}
	}
	return out
}

// portNames lists the names for people: "" is shown, as it is the usual culprit.
func portNames(keys map[portKey]struct{}) string {
	if len(keys) == 0 {
		return "none"
	}
	sorted := slices.SortedFunc(maps.Keys(keys), func(a, b portKey) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.protocol, b.protocol))
	})
	const most = 10
	var b strings.Builder
	for i, k := range sorted {
		if i > 0 {
			b.WriteString(", ")
		}
		if i == most {
			b.WriteString("and " + strconv.Itoa(len(sorted)-most) + " more")
			break
		}
		b.WriteString(strconv.Quote(k.name))
		if k.protocol != TCP {
			b.WriteString("/" + string(k.protocol))
		}
	}
	return b.String()
}
