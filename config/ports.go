package config

import (
	"cmp"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// servicePorts translates spec.ports. front carries what all ports of the Service share. A port that cannot be served is
// dropped alone; of ports that contradict each other the first in the list stays.
func servicePorts(name ServiceName, spec v1.ServiceSpec, front ServicePort, families []Family, p *problems) []ServicePort {
	type portKey struct {
		number   uint16
		protocol Protocol
	}
	var out []ServicePort
	names := map[string]string{}
	numbers := map[portKey]string{}
	nodePorts := map[portKey]string{}
	for i, sp := range spec.Ports {
		at := index("spec.ports", i)
		if sp.Name == "" && len(spec.Ports) > 1 {
			p.add(ReasonInvalidPort, "%s.name is empty: every port of a Service with several needs a name", at)
			continue
		}
		if len(validation.IsDNS1123Label(sp.Name)) > 0 && sp.Name != "" {
			p.add(ReasonInvalidPort, "%s.name %q is not a DNS label: use lower case letters, digits and '-'", at, sp.Name)
			continue
		}
		protocol, ok := protocolOf(sp.Protocol)
		if !ok {
			p.addPort(sp.Name, ReasonInvalidPort, "%s.protocol %q is not TCP, UDP or SCTP", at, sp.Protocol)
			continue
		}
		number, ok := portNumber(sp.Port)
		if !ok {
			p.addPort(sp.Name, ReasonInvalidPort, "%s.port %d is not within 1-65535", at, sp.Port)
			continue
		}
		if first, ok := names[sp.Name]; ok {
			p.addPort(sp.Name, ReasonDuplicatePort, "%s.name %q repeats %s.name", at, sp.Name, first)
			continue
		}
		key := portKey{number, protocol}
		if first, ok := numbers[key]; ok {
			p.addPort(sp.Name, ReasonDuplicatePort, "%s.port %d/%s repeats %s.port", at, number, protocol, first)
			continue
		}
		names[sp.Name], numbers[key] = at, at

		port := front
		port.Name = ServicePortName{Service: name, Port: sp.Name, Protocol: protocol}
		port.Port = number
		if np := nodePort(spec, sp, at, p); np != 0 {
			key := portKey{np, protocol}
			if first, ok := nodePorts[key]; ok {
				p.addPort(sp.Name, ReasonInvalidNodePort, "%s.nodePort %d/%s repeats %s.nodePort: the port has none",
					at, np, protocol, first)
			} else {
				nodePorts[key] = at
				port.NodePort, port.NodePortFamilies = np, families
			}
		}
		out = append(out, port)
	}
	if len(spec.Ports) == 0 {
		p.add(ReasonInvalidPort, "spec.ports is empty: nothing is served")
	}
	slices.SortFunc(out, func(a, b ServicePort) int { return a.Name.Compare(b.Name) })
	return out
}

// nodePort is the port's node port or 0.
func nodePort(spec v1.ServiceSpec, sp v1.ServicePort, at string, p *problems) uint16 {
	if sp.NodePort == 0 {
		return 0
	}
	switch spec.Type {
	case v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer:
	default:
		p.addPort(sp.Name, ReasonInvalidNodePort, "%s.nodePort %d needs spec.type NodePort or LoadBalancer: the port has none",
			at, sp.NodePort)
		return 0
	}
	number, ok := portNumber(sp.NodePort)
	if !ok {
		p.addPort(sp.Name, ReasonInvalidNodePort, "%s.nodePort %d is not within 1-65535: the port has none", at, sp.NodePort)
	}
	return number
}

// portNumber reports whether n is a port; 0 is none.
func portNumber(n int32) (uint16, bool) {
	if n < 1 || n > math.MaxUint16 {
		return 0, false
	}
	return uint16(n), true
}

// protocolOf applies the API's default.
func protocolOf(p v1.Protocol) (Protocol, bool) {
	switch out := Protocol(cmp.Or(p, v1.ProtocolTCP)); out {
	case TCP, UDP, SCTP:
		return out, true
	}
	return "", false
}
