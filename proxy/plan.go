package proxy

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"redial/config"
	"redial/proxy/intercept"
)

// frontendKey identifies a frontend: one listener and one balancer.
type frontendKey struct {
	name   config.ServicePortName
	pool   config.Pool
	family config.Family
}

func (k frontendKey) compare(o frontendKey) int {
	return cmp.Or(k.name.Compare(o.name), cmp.Compare(k.family, o.family), cmp.Compare(k.pool, o.pool))
}

// frontendKeys are those that a Service port can have.
func frontendKeys(name config.ServicePortName) iter.Seq[frontendKey] {
	return func(yield func(frontendKey) bool) {
		for _, family := range config.Families {
			if !yield(frontendKey{name, config.ClusterPool, family}) || !yield(frontendKey{name, config.LocalPool, family}) {
				return
			}
		}
	}
}

// vip is a VIP as one frontend has it.
type vip struct {
	intercept.VIP
	kind string // what kind of address it is to the user
	from string // which of its clients come to this frontend
	// sources are the clients that are let in; nil means everybody, an empty list nobody.
	sources []netip.Prefix
}

// The clients of a VIP that come to one frontend. An external traffic policy Local splits them between two: those on this
// node have what the policy Cluster gives, since it is for choosing among nodes, and they have not chosen this one.
const (
	fromAnywhere  = ""
	fromNode      = "node"      // this node's own processes, and its pods as far as [Config.LocalPods] tells them
	fromElsewhere = "elsewhere" // all others
)

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
	// frontends that should exist, each with its VIPs in order. A VIP whose clients are split is with both.
	frontends map[frontendKey][]vip
	owners    owners
	problems  problems
	sorted    []frontendKey // of frontends, once somebody has asked for them in order
}

// buildPlan decides which frontends there should be and which VIPs each one has. It is a function of its arguments. A VIP
// that two Service ports ask for belongs to the one whose ClusterIP it is, since that is allocated and the other addresses
// are anybody's claims. Otherwise it stays with the one that has it, according to current; where none has, the older
// Service gets it, then the one that sorts first. The other one keeps its remaining VIPs.
func buildPlan(wanted services, current owners) plan {
	p := plan{problems: problems{}}
	ports := supportedPorts(wanted, p.problems)
	p.frontends, p.owners = make(map[frontendKey][]vip, len(ports)), make(owners, len(ports))
	vips := make([][]vip, len(ports))
	contested := map[intercept.VIP]claim{}
	for i, port := range ports {
		vips[i] = vipsOf(port)
		for _, v := range vips[i] {
			if _, taken := p.owners[v.VIP]; taken {
				contested[v.VIP] = claim{}
			}
			p.owners[v.VIP] = port.Name
		}
	}
	if len(contested) > 0 {
		p.settle(contested, ports, vips, current)
	}
	for i, port := range ports {
		for _, v := range vips[i] {
			if owner := p.owners[v.VIP]; owner != port.Name {
				p.problems.add(port.Name, ReasonAddressConflict, "%s %s belongs to %s already: change one of the two", v.kind, v.VIP, owner)
				continue
			}
			p.give(port, v)
		}
	}
	return p
}

// settle decides who owns the contested VIPs.
func (p *plan) settle(contested map[intercept.VIP]claim, ports []*config.ServicePort, vips [][]vip, current owners) {
	for i, port := range ports {
		for _, v := range vips[i] {
			best, found := contested[v.VIP]
			if !found {
				continue
			}
			if c := (claim{port, v.kind == kindClusterIP, current[v.VIP] == port.Name}); best.port == nil || c.beats(best) {
				contested[v.VIP], p.owners[v.VIP] = c, port.Name
			}
		}
	}
}

// claim is that a port asks for a VIP.
type claim struct {
	port      *config.ServicePort
	clusterIP bool // it is its ClusterIP
	has       bool // it has it
}

// beats reports whether c is better than one that comes before it.
func (c claim) beats(before claim) bool {
	if c.clusterIP != before.clusterIP {
		return c.clusterIP
	}
	return c.has && !before.has
}

// give hands a VIP to the frontends that its clients should come to. Frontends come into being by this.
func (p *plan) give(port *config.ServicePort, v vip) {
	cluster := frontendKey{port.Name, config.ClusterPool, config.FamilyOf(v.Addr)}
	local := cluster
	local.pool = config.LocalPool
	switch {
	case v.kind == kindClusterIP && port.InternalLocal:
		p.frontends[local] = append(p.frontends[local], v)
	case v.kind != kindClusterIP && port.ExternalLocal:
		v.from = fromElsewhere
		p.frontends[local] = append(p.frontends[local], v)
		v.from = fromNode
		fallthrough
	default:
		p.frontends[cluster] = append(p.frontends[cluster], v)
	}
}

// supportedPorts lists the ports that can be served, of older Services first, and notes a problem for the others.
func supportedPorts(wanted services, problems problems) []*config.ServicePort {
	var ports []*config.ServicePort
	for _, s := range inOrder(wanted) {
		for i := range s.Ports {
			port := &s.Ports[i]
			if _, ok := protocols[port.Name.Protocol]; !ok {
				problems.add(port.Name, ReasonUnsupportedProtocol, "%s is not relayed and the port not served: use TCP or UDP, or a headless Service, which needs no proxy", port.Name.Protocol)
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

// vipsOf lists the VIPs of a port, each once. What is both an externalIP and a load balancer IP keeps the source ranges
// of the latter: whoever restricts an address does not mean to leave a way around.
func vipsOf(port *config.ServicePort) []vip {
	var vips []vip
	add := func(kind string, number uint16, ranges []netip.Prefix, addrs ...netip.Addr) {
		for _, a := range addrs {
			v := vip{
				VIP:  intercept.VIP{Addr: a, Port: number, Protocol: protocols[port.Name.Protocol]},
				kind: kind, sources: ofFamily(ranges, config.FamilyOf(a)),
			}
			i := slices.IndexFunc(vips, func(o vip) bool { return o.VIP == v.VIP })
			switch {
			case i < 0:
				vips = append(vips, v)
			case vips[i].kind == kindExternalIP:
				vips[i].sources = v.sources
			}
		}
	}
	add(kindClusterIP, port.Port, nil, port.ClusterIPs...)
	add(kindExternalIP, port.Port, nil, port.ExternalIPs...)
	add(kindLoadBalancer, port.Port, port.SourceRanges, port.LoadBalancerIPs...)
	if port.NodePort != 0 {
		for _, f := range port.NodePortFamilies {
			add(kindNodePort, port.NodePort, nil, anyAddr(f))
		}
	}
	return vips
}

// ofFamily keeps the ranges of one family. Ranges of the other family alone leave nobody, not everybody.
func ofFamily(ranges []netip.Prefix, family config.Family) []netip.Prefix {
	if ranges == nil {
		return nil
	}
	of := []netip.Prefix{}
	for _, r := range ranges {
		if config.FamilyOf(r.Addr()) == family {
			of = append(of, r)
		}
	}
	return of
}

func anyAddr(f config.Family) netip.Addr {
	if f == config.IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// sameShape reports whether a and b want the same frontends and rules: whether only endpoints, affinity and settings
// changed, if anything.
func sameShape(a, b *config.Service) bool {
	if a == nil || b == nil {
		return (a == nil || len(a.Ports) == 0) && (b == nil || len(b.Ports) == 0)
	}
	return a.Created.Equal(b.Created) && a.HealthCheckNodePort == b.HealthCheckNodePort &&
		slices.EqualFunc(a.Ports, b.Ports, config.ServicePort.SameFrontend)
}

// sameEndpoints reports whether a and b, if they have the same ports, have the same endpoints behind them.
func sameEndpoints(a, b *config.Service) bool {
	var none config.Service
	if a == nil {
		a = &none
	}
	if b == nil {
		b = &none
	}
	return slices.EqualFunc(a.Ports, b.Ports, func(a, b config.ServicePort) bool { return slices.Equal(a.Endpoints, b.Endpoints) })
}
