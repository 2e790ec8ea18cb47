package config

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unique"
)

// Protocol is a transport protocol as the Kubernetes API spells it.
type Protocol string

// The protocols a Service port can have.
const (
	TCP  Protocol = "TCP"
	UDP  Protocol = "UDP"
	SCTP Protocol = "SCTP"
)

// Family is an IP family. The two halves of a dual-stack Service are served independently of each other.
type Family string

// The families, spelled as in Service.spec.ipFamilies.
const (
	IPv4 Family = "IPv4"
	IPv6 Family = "IPv6"
)

// Families lists both, in the order in which they are handled.
var Families = []Family{IPv4, IPv6}

// FamilyOf returns the family of a valid address. A v4-mapped IPv6 address is IPv4, as it is on the wire.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// ServiceName identifies a Service.
type ServiceName struct {
	Namespace, Name string
}

func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// MarshalText makes n a string in JSON, as in logs.
func (n ServiceName) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// ServicePortName identifies one port of a Service. Port is empty for the only port of a Service that does not name it.
type ServicePortName struct {
	Service  ServiceName
	Port     string
	Protocol Protocol
}

// String returns "namespace/name:port/TCP", without the colon for an unnamed port.
func (n ServicePortName) String() string {
	s := n.Service.String()
	if n.Port != "" {
		s += ":" + n.Port
	}
	return s + "/" + string(n.Protocol)
}

// MarshalText makes n a string in JSON, as in logs.
func (n ServicePortName) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// Compare orders names by namespace, Service, port and protocol.
func (n ServicePortName) Compare(o ServicePortName) int {
	for _, c := range []int{
		cmp.Compare(n.Service.Namespace, o.Service.Namespace),
		cmp.Compare(n.Service.Name, o.Service.Name),
		cmp.Compare(n.Port, o.Port),
		cmp.Compare(n.Protocol, o.Protocol),
	} {
		if c != 0 {
			return c
		}
	}
	return 0
}

// Service is one Service as the proxy sees it. It exists also for Services that are not to be proxied (headless,
// ExternalName, no ClusterIP): those have no Ports. The value is immutable once handed out.
type Service struct {
	Name ServiceName
	// Created orders Services that claim the same address and port; zero (manifests have none) sorts by name.
	Created time.Time
	// IPFamilies are those the Service is served in, whether or not it has an address in each, in the order of [Families].
	IPFamilies []Family
	// Ports, sorted by name.
	Ports []ServicePort
	// HealthCheckNodePort is the port at which load balancers ask whether this node has an endpoint of the Service; 0
	// means none. Only load balancers with external traffic policy Local have one.
	HealthCheckNodePort uint16
	// Triggered is when the newest of the changes happened that led to this value, as the endpoint controller recorded it
	// (annotation endpoints.kubernetes.io/last-change-trigger-time); zero means unknown, or that no slice has changed. It
	// is not part of what makes two values differ. What is delivered at the start may have happened long before.
	Triggered time.Time
	// Skipped says why there are no ports although the object is fine ("headless", "ExternalName"); otherwise empty.
	Skipped string
	// Problems found while translating the object and its slices: each names a field and what to do about it.
	Problems []Problem
}

// equal reports whether nobody could tell s from o.
func (s *Service) equal(o *Service) bool {
	return s.sameObject(o) && slices.EqualFunc(s.Ports, o.Ports, func(a, b ServicePort) bool { return slices.Equal(a.Endpoints, b.Endpoints) })
}

// sameObject is equal but for endpoints.
func (s *Service) sameObject(o *Service) bool {
	return s.Name == o.Name && s.Created.Equal(o.Created) && s.Skipped == o.Skipped &&
		s.HealthCheckNodePort == o.HealthCheckNodePort &&
		slices.EqualFunc(s.Ports, o.Ports, func(a, b ServicePort) bool {
			return a.SameFrontend(b) && a.Affinity == b.Affinity && a.Settings.equal(b.Settings)
		}) &&
		slices.Equal(s.Problems, o.Problems) && slices.Equal(s.IPFamilies, o.IPFamilies)
}

// Problem is something about one object that its owner has to fix. The rest of the object is served.
type Problem struct {
	// Port is the Service port's name where the problem concerns one port only.
	Port string `json:"port,omitempty"`
	// Reason is a CamelCase word for machines, as in Kubernetes events.
	Reason string `json:"reason"`
	// Message is a sentence for people.
	Message string `json:"message"`
}

// ServicePort is one port of a Service, with its endpoints.
type ServicePort struct {
	Name ServicePortName
	// Port is the port on the ClusterIPs, externalIPs and load balancer IPs.
	Port uint16
	// NodePort is the port on the node's own addresses; 0 means none.
	NodePort uint16
	// NodePortFamilies are the families NodePort is open in.
	NodePortFamilies []Family
	// ClusterIPs, at most one per family.
	ClusterIPs []netip.Addr
	// ExternalIPs of the Service's families, without duplicates.
	ExternalIPs []netip.Addr
	// LoadBalancerIPs from status.loadBalancer.ingress, ipMode VIP only.
	LoadBalancerIPs []netip.Addr
	// SourceRanges are the clients that may use the load balancer IPs, of both families; nil means everybody, an empty
	// list nobody.
	SourceRanges []netip.Prefix
	// InternalLocal and ExternalLocal mean that the traffic policy is Local for ClusterIPs, and for all other addresses
	// and the NodePort: only endpoints on the client's node, or the node that the client has chosen, are for it.
	InternalLocal, ExternalLocal bool
	// Affinity is how long a client address stays with its backend after its last connection; 0 means no affinity.
	Affinity time.Duration
	// Settings are what the Service asks for by annotations, shared by its ports; nil means that it asks for nothing.
	Settings *Settings
	// Endpoints of this port in both families, sorted by address, ready or not.
	Endpoints []Endpoint
}

// SameFrontend reports whether p and o want the same listeners and rules: whether they differ, if at all, only in what
// is behind the frontend (endpoints, affinity, settings).
func (p ServicePort) SameFrontend(o ServicePort) bool {
	return p.Name == o.Name && p.Port == o.Port && p.NodePort == o.NodePort &&
		slices.Equal(p.NodePortFamilies, o.NodePortFamilies) &&
		slices.Equal(p.ClusterIPs, o.ClusterIPs) &&
		slices.Equal(p.ExternalIPs, o.ExternalIPs) &&
		slices.Equal(p.LoadBalancerIPs, o.LoadBalancerIPs) &&
		(p.SourceRanges == nil) == (o.SourceRanges == nil) && slices.Equal(p.SourceRanges, o.SourceRanges) &&
		p.InternalLocal == o.InternalLocal && p.ExternalLocal == o.ExternalLocal
}

// Endpoint is one backend address of a Service port.
type Endpoint struct {
	Addr netip.AddrPort
	// Ready, Serving and Terminating are the EndpointSlice conditions with the API's defaults applied: nil ready and
	// nil serving mean true, nil terminating means false (KEP-1672).
	Ready, Serving, Terminating bool
	// Weight is how much of the traffic the endpoint should get, beside the others; not set means 1, and set it is not 1. 0
	// means that it should get none while another one can. Whether a scheduler has use for it is its own business.
	Weight Setting[uint16]
	// At is its place, see [Endpoint.Place]; zero, and nothing else, if nothing is known of it.
	At unique.Handle[Place]
}

// Place is where an endpoint runs, and for whose clients. Many endpoints share one.
type Place struct {
	// NodeName is the node the endpoint runs on; empty when unknown.
	NodeName string
	// ForZones and ForNodes are the topology hints: the zones and nodes whose clients the endpoint is meant for. Empty
	// means none given.
	ForZones, ForNodes Names
}

// Place returns what is known of the endpoint's place.
func (e Endpoint) Place() Place {
	if e.At == (unique.Handle[Place]{}) {
		return Place{}
	}
	return e.At.Value()
}

func (p Place) handle() unique.Handle[Place] {
	if p == (Place{}) {
		return unique.Handle[Place]{}
	}
	return unique.Make(p)
}

// Names is a set of names of zones or nodes, comparable and shared by all endpoints that have it. Its zero value is empty.
type Names string

// NamesOf returns the set of names. Names that are empty or hold a comma are left out: those of nodes and zones are DNS
// subdomains and label values, which cannot.
func NamesOf(names ...string) Names {
	unfit := func(s string) bool { return s == "" || strings.Contains(s, ",") }
	if len(names) == 1 && !unfit(names[0]) {
		return Names(intern(names[0])) // nearly all sets are like this: nothing is allocated for them
	}
	names = slices.DeleteFunc(slices.Clone(names), unfit)
	slices.Sort(names)
	return Names(intern(strings.Join(slices.Compact(names), ",")))
}

// Has reports whether name is in the set.
func (n Names) Has(name string) bool {
	if name == "" {
		return false
	}
	for s := range strings.SplitSeq(string(n), ",") {
		if s == name {
			return true
		}
	}
	return false
}
