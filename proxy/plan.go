package proxy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"redial/config"
	"redial/proxy/intercept"
)

// frontendKey identifies a frontend: one listener and one balancer.
type frontendKey struct {
	name   config.ServicePortName
	family config.Family
}

func (k frontendKey) compare(o frontendKey) int {
	return cmp.Or(k.name.Compare(o.name), cmp.Compare(k.family, o.family))
}

// vip is a VIP and what kind of address it is to the user.
type vip struct {
	intercept.VIP
	kind string
}

// The kinds, as they appear in status.
const (
	kindClusterIP    = "ClusterIP"
	kindNodePort     = "NodePort"
	kindExternalIP   = "ExternalIP"
	kindLoadBalancer = "LoadBalancerIP"
)

// services is the whole wanted state.
type services map[config.ServiceName]*config.Service

// owners tells which Service port has each VIP.
type owners map[intercept.VIP]config.ServicePortName

// plan is what there should be.
type plan struct {
	// frontends that should exist, each with its VIPs in order.
	frontends map[frontendKey][]vip
	owners    owners
	problems  problems
}

// problems of Services, in the order in which they were found.
type problems map[config.ServiceName][]config.Problem

func (p problems) add(name config.ServicePortName, reason, format string, args ...any) {
	p[name.Service] = append(p[name.Service], config.Problem{
		Port: name.Port, Reason: reason, Message: fmt.Sprintf(format, args...),
	})
}

// The reasons that planning and syncing add to those of package config.
const (
	ReasonUnsupportedProtocol = "UnsupportedProtocol"
	ReasonAddressConflict     = "AddressConflict"
	ReasonListenFailed        = "ListenFailed"
	ReasonSteeringFailed      = "SteeringFailed"
)

// buildPlan decides which frontends there should be and which VIPs each one has. It is a function of its arguments. A VIP
// that two Service ports ask for stays with the one that has it, according to current; where none has, the older
// Service gets it, then the one that sorts first. The other one keeps its remaining VIPs.
func buildPlan(wanted services, current owners) plan {
	p := plan{frontends: map[frontendKey][]vip{}, owners: owners{}, problems: problems{}}
	ports := supportedPorts(wanted, p.problems)
	for _, port := range ports {
		for _, v := range vipsOf(port) {
			if current[v.VIP] == port.Name {
				p.owners[v.VIP] = port.Name
			}
		}
	}
	for _, port := range ports {
		for _, v := range vipsOf(port) {
			owner, taken := p.owners[v.VIP]
			if taken && owner != port.Name {
				p.problems.add(port.Name, ReasonAddressConflict, "%s %s belongs to %s already: change one of the two", v.kind, v.VIP, owner)
				continue
			}
			p.owners[v.VIP] = port.Name
			key := frontendKey{port.Name, config.FamilyOf(v.Addr)}
			if !slices.ContainsFunc(p.frontends[key], func(o vip) bool { return o.VIP == v.VIP }) {
				p.frontends[key] = append(p.frontends[key], v)
			}
		}
	}
	return p
}

// supportedPorts lists the ports that can be served, of older Services first, and notes a problem for the others.
func supportedPorts(wanted services, problems problems) []*config.ServicePort {
	var ports []*config.ServicePort
	for _, s := range inOrder(wanted) {
		for i := range s.Ports {
			port := &s.Ports[i]
			if _, ok := protocols[port.Name.Protocol]; !ok {
				problems.add(port.Name, ReasonUnsupportedProtocol, "%s is not relayed: the port is not served", port.Name.Protocol)
				continue
			}
			ports = append(ports, port)
		}
	}
	return ports
}

// protocols are those that are relayed.
var protocols = map[config.Protocol]intercept.Protocol{config.TCP: intercept.TCP, config.UDP: intercept.UDP}

func inOrder(wanted services) []*config.Service {
	return slices.SortedFunc(maps.Values(wanted), func(a, b *config.Service) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name.Namespace, b.Name.Namespace), cmp.Compare(a.Name.Name, b.Name.Name))
	})
}

func vipsOf(port *config.ServicePort) []vip {
	var vips []vip
	add := func(kind string, number uint16, addrs ...netip.Addr) {
		for _, a := range addrs {
			vips = append(vips, vip{intercept.VIP{Addr: a, Port: number, Protocol: protocols[port.Name.Protocol]}, kind})
		}
	}
	add(kindClusterIP, port.Port, port.ClusterIPs...)
	add(kindExternalIP, port.Port, port.ExternalIPs...)
	add(kindLoadBalancer, port.Port, port.LoadBalancerIPs...)
	if port.NodePort != 0 {
		for _, f := range port.NodePortFamilies {
			add(kindNodePort, port.NodePort, anyAddr(f))
		}
	}
	return vips
}

func anyAddr(f config.Family) netip.Addr {
	if f == config.IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// sameShape reports whether a and b want the same frontends: whether only endpoints and affinity changed, if anything.
func sameShape(a, b *config.Service) bool {
	if a == nil || b == nil {
		return (a == nil || len(a.Ports) == 0) && (b == nil || len(b.Ports) == 0)
	}
	return a.Created.Equal(b.Created) && slices.EqualFunc(a.Ports, b.Ports, config.ServicePort.SameFrontend)
}
