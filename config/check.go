package config

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// refusedReasons are those of problems for which an API server would have refused the object. Annotations are free text to
// it: a wrong one must not hold back what is right in the object, in a directory no more than in a cluster.
var refusedReasons = []string{
	ReasonInvalidAddress, ReasonInvalidPort, ReasonDuplicatePort, ReasonInvalidNodePort, ReasonInvalidField,
	ReasonInvalidAffinity, ReasonInvalidSourceRange, ReasonInvalidEndpoint, ReasonInvalidEndpointSet,
}

// Check returns what is wrong with a Service, EndpointSlice or Endpoints that an API server would not have let in. A
// Tracker takes such an object all the same and leaves out what is wrong; a source that knows an earlier version, and has
// no API server before it, may prefer that one.
func Check(object any) []Problem {
	var all []Problem
	switch o := object.(type) {
	case *v1.Service:
		// An API server looks at all alike, whichever proxy they are for.
		all = translate(o, Options{ServiceProxyName: o.Labels[labelServiceProxyName]}).Problems
	case *discoveryv1.EndpointSlice:
		all = translateSlice(o).problems
	//lint:ignore SA1019 see translateEndpoints
	case *v1.Endpoints:
		all = translateEndpoints(o).problems
	}
	return slices.DeleteFunc(slices.Clone(all), func(p Problem) bool { return !slices.Contains(refusedReasons, p.Reason) })
}
