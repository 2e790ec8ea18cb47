package config

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
	"unique"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// endpointSet is one EndpointSlice or one v1.Endpoints, translated. It does not yet know its Service's ports.
type endpointSet struct {
	name     string // of the EndpointSlice
	parts    []endpointPart
	problems []Problem
	// triggered is when the change happened that led to this set; zero when that is unknown, or has been handed out. Sets
	// are equal whatever it is.
	triggered time.Time
	// weight is that of all targets which the Service gives none.
	weight Setting[uint16]
}

// endpointPart is a set of targets that all have the same ports: a slice is one, an Endpoints object is one per subset.
type endpointPart struct {
	ports   []endpointPort
	targets []target
}

// endpointPort has number 0 where the object names a port without a usable number.
type endpointPort struct {
	name     string
	protocol Protocol
	number   uint16
}

// target is an endpoint before it is multiplied by the ports.
type target struct {
	addr                        netip.Addr
	ready, serving, terminating bool
	pod                         podHash
	at                          unique.Handle[Place] // see Endpoint
}

func (s *endpointSet) equal(o *endpointSet) bool {
	return slices.EqualFunc(s.parts, o.parts, func(a, b endpointPart) bool {
		return slices.Equal(a.ports, b.ports) && slices.Equal(a.targets, b.targets)
	}) && s.weight == o.weight && slices.Equal(s.problems, o.problems)
}

// translateSlice turns an EndpointSlice into values. Like translate it is total.
func translateSlice(slice *discoveryv1.EndpointSlice) *endpointSet {
	c := endpointChecker{object: "EndpointSlice " + namespace(slice.Namespace) + "/" + slice.Name}
	switch slice.AddressType {
	case discoveryv1.AddressTypeIPv4:
		c.families = []Family{IPv4}
	case discoveryv1.AddressTypeIPv6:
		c.families = []Family{IPv6}
	case discoveryv1.AddressTypeFQDN:
		c.problems.add(ReasonInvalidEndpointSet, "%s has addressType FQDN: names are not resolved, the slice is ignored", c.object)
		return &endpointSet{problems: c.problems}
	default:
		c.families = Families
		c.problems.add(ReasonInvalidEndpointSet,
			"%s has addressType %q instead of IPv4 or IPv6: each address counts for its own family", c.object, slice.AddressType)
	}
	var part endpointPart
	for i, sp := range slice.Ports {
		part.ports = c.port(part.ports, index("ports", i), deref(sp.Name), deref(sp.Protocol), deref(sp.Port))
	}
	part.targets = make([]target, 0, len(slice.Endpoints))
	for i, e := range slice.Endpoints {
		if len(e.Addresses) == 0 {
			c.badEndpoint(fmt.Sprintf("endpoints[%d] has no address", i))
			continue
		}
		// Only the first: further addresses are fungible by definition and no consumer uses them; the API is about to
		// forbid them.
		a, ok := c.addr(func() string { return fmt.Sprintf("endpoints[%d].addresses[0]", i) }, e.Addresses[0])
		if !ok {
			continue
		}
		hints := deref(e.Hints)
		part.targets = append(part.targets, target{
			addr:        a,
			ready:       e.Conditions.Ready == nil || *e.Conditions.Ready,
			serving:     e.Conditions.Serving == nil || *e.Conditions.Serving,
			terminating: e.Conditions.Terminating != nil && *e.Conditions.Terminating,
			pod:         podOf(e.TargetRef, deref(e.Hostname)),
			at: Place{
				NodeName: intern(deref(e.NodeName)),
				ForZones: namesOf(hints.ForZones, func(z discoveryv1.ForZone) string { return z.Name }),
				ForNodes: namesOf(hints.ForNodes, func(n discoveryv1.ForNode) string { return n.Name }),
			}.handle(),
		})
	}
	weight := c.ownWeight("an EndpointSlice", slice.Annotations)
	return &endpointSet{parts: []endpointPart{part}, problems: c.done(), triggered: triggered(slice.Annotations), weight: weight}
}

func namesOf[T any](hints []T, name func(T) string) Names {
	if len(hints) == 0 {
		return ""
	}
	names := make([]string, 0, 8) // the most the API allows
	for _, h := range hints {
		names = append(names, name(h))
	}
	return NamesOf(names...)
}

// triggered is what the endpoint controller recorded as the time of the change that it wrote the slice for. It serves
// measuring only, so one that cannot be read is as good as none.
func triggered(annotations map[string]string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, annotations[v1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

// endpointChecker collects the Problems of one object with endpoints. A slice generated wrongly is wrong a thousand
// times, so bad endpoints are one Problem that shows the first and counts the others.
type endpointChecker struct {
	object   string
	families []Family
	problems problems
	first    string
	bad      int
}

func (c *endpointChecker) badEndpoint(message string) {
	if c.bad == 0 {
		c.first = message
	}
	c.bad++
}

func (c *endpointChecker) done() []Problem {
	switch {
	case c.bad == 1:
		c.problems.add(ReasonInvalidEndpoint, "%s: %s: the endpoint is left out", c.object, c.first)
	case c.bad > 1:
		c.problems.add(ReasonInvalidEndpoint, "%s: %s: %d endpoints are left out for this and the like", c.object, c.first, c.bad)
	}
	return c.problems
}

// addr reads an address, which stands where at says. Loopback addresses, which the API forbids, are accepted: a directory
// of manifests on one machine is served by processes of that machine. Link-local addresses stay forbidden, since without a
// zone they cannot be dialled.
func (c *endpointChecker) addr(at func() string, s string) (netip.Addr, bool) {
	a, err := parseAddr(s)
	switch why := notUnicast(a); {
	case err != nil:
		c.badEndpoint(fmt.Sprintf("%s %q is not an IP address", at(), s))
	case a.IsLinkLocalUnicast():
		c.badEndpoint(fmt.Sprintf("%s %s is a link-local address", at(), a))
	case why != "" && !a.IsLoopback():
		c.badEndpoint(fmt.Sprintf("%s %s is %s", at(), a, why))
	case !slices.Contains(c.families, FamilyOf(a)):
		c.badEndpoint(fmt.Sprintf("%s %s is %s but the addressType is %s", at(), a, FamilyOf(a), c.families[0]))
	default:
		return a, true
	}
	return netip.Addr{}, false
}

// port appends one port of the object. A port without a usable number keeps its name, so that the name is not reported
// as missing besides.
func (c *endpointChecker) port(ports []endpointPort, at, name string, p v1.Protocol, n int32) []endpointPort {
	protocol, ok := protocolOf(p)
	if !ok {
		c.problems.add(ReasonInvalidEndpointSet, "%s: %s.protocol %q is not TCP, UDP or SCTP: the port is left out", c.object, at, p)
		return ports
	}
	number, ok := portNumber(n)
	if !ok {
		c.problems.add(ReasonInvalidEndpointSet, "%s: %s.port %d is not within 1-65535: the port is left out", c.object, at, n)
	}
	return append(ports, endpointPort{name: intern(name), protocol: protocol, number: number})
}

// deref returns the zero value for nil, which for names, protocols and ports is the API's default.
func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// intern keeps one copy of a string that thousands of endpoints share.
func intern(s string) string { return unique.Make(s).Value() }
