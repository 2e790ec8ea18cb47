package config

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

//lint:file-ignore SA1019 v1.Endpoints is deprecated for writers; a proxy has to go on reading it.

// translateEndpoints turns a v1.Endpoints into values. The API deprecates the kind in favour of EndpointSlice, but it is
// the shorter way to write down the addresses of a Service without a selector, and many manifests do.
//
// Ready and not-ready addresses are all an Endpoints can say; nothing in it is terminating.
func translateEndpoints(e *v1.Endpoints) *endpointSet {
	c := endpointChecker{object: "Endpoints " + namespace(e.Namespace) + "/" + e.Name, families: Families}
	set := &endpointSet{parts: make([]endpointPart, 0, len(e.Subsets))}
	for i, subset := range e.Subsets {
		var part endpointPart
		at := index("subsets", i)
		for j, sp := range subset.Ports {
			part.ports = c.port(part.ports, index(at+".ports", j), sp.Name, sp.Protocol, sp.Port)
		}
		add := func(list string, addresses []v1.EndpointAddress, ready bool) {
			for j, ea := range addresses {
				a, ok := c.addr(func() string { return fmt.Sprintf("%s.%s[%d].ip", at, list, j) }, ea.IP)
				if ok {
					part.targets = append(part.targets, target{addr: a, ready: ready, serving: ready, at: Place{NodeName: intern(deref(ea.NodeName))}.handle(),
						pod: podOf(ea.TargetRef, ea.Hostname)})
				}
			}
		}
		add("addresses", subset.Addresses, true)
		add("notReadyAddresses", subset.NotReadyAddresses, false)
		set.parts = append(set.parts, part)
	}
	set.weight = c.ownWeight("Endpoints", e.Annotations)
	set.problems = c.done()
	return set
}
