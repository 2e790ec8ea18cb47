package config

import "fmt"

// The reasons a [Problem] can have. They are part of the interface: events and metrics carry them, and alerts match them.
const (
	// ReasonInvalidAddress is an address that cannot be read, or that nobody can have.
	ReasonInvalidAddress = "InvalidAddress"
	// ReasonWrongFamily is an address of a family the Service does not have.
	ReasonWrongFamily = "WrongFamily"
	// ReasonDuplicateAddress is an address given twice, or a second ClusterIP of one family.
	ReasonDuplicateAddress = "DuplicateAddress"
	// ReasonInvalidPort is a Service port that cannot be served.
	ReasonInvalidPort = "InvalidPort"
	// ReasonDuplicatePort is a Service port with the name, or the number and protocol, of one before it.
	ReasonDuplicatePort = "DuplicatePort"
	// ReasonInvalidNodePort is a node port that cannot be opened; the port is served without.
	ReasonInvalidNodePort = "InvalidNodePort"
	// ReasonInvalidField is a field with a value the API does not know; it is ignored.
	ReasonInvalidField = "InvalidField"
	// ReasonInvalidAffinity is a session affinity or timeout the API does not allow; the default is used.
	ReasonInvalidAffinity = "InvalidAffinity"
	// ReasonUnsupportedPolicy is a traffic policy that the API does not know yet; it is served as Cluster.
	ReasonUnsupportedPolicy = "UnsupportedPolicy"
	// ReasonInvalidSourceRange is a range of load balancer clients that cannot be read; it lets nobody in.
	ReasonInvalidSourceRange = "InvalidSourceRange"
	// ReasonNoSourceRange means that clients are restricted, and that no range lets any client of one family in.
	ReasonNoSourceRange = "NoSourceRange"
	// ReasonExternalIPsDisabled means that externalIPs are not served since [Options].DisableExternalIPs is set.
	ReasonExternalIPsDisabled = "ExternalIPsDisabled"
	// ReasonInvalidEndpoint is an endpoint whose address cannot be dialled; it is left out.
	ReasonInvalidEndpoint = "InvalidEndpoint"
	// ReasonInvalidEndpointSet is a field of a whole EndpointSlice or Endpoints that cannot be used.
	ReasonInvalidEndpointSet = "InvalidEndpointSlice"
	// ReasonInvalidAnnotation is an annotation for this proxy with a value that it cannot have; it counts as missing.
	ReasonInvalidAnnotation = "InvalidAnnotation"
	// ReasonUnknownAnnotation is an annotation that is for this proxy by its prefix, and that it does not know.
	ReasonUnknownAnnotation = "UnknownAnnotation"
	// ReasonUnusedAnnotation is an annotation that changes nothing, as it fits nothing else of the Service.
	ReasonUnusedAnnotation = "UnusedAnnotation"
	// ReasonPortNameMismatch is a Service port that no endpoint port matches although there are endpoints.
	ReasonPortNameMismatch = "EndpointPortMismatch"
)

// problems collects what is wrong with one object while it is translated.
type problems []Problem

func (p *problems) add(reason, format string, args ...any) { p.addPort("", reason, format, args...) }

func (p *problems) addPort(port, reason, format string, args ...any) {
	*p = append(*p, Problem{Port: port, Reason: reason, Message: fmt.Sprintf(format, args...)})
}
