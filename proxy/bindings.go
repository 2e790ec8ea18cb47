package proxy

import (
	"net/netip"
	"slices"

	"redial/config"
	"redial/proxy/intercept"
)

// state is what the Interceptor is to put in force for the plan, which is for all or for some.
func (p *Proxier) state(plan *plan, scope amendments) intercept.State {
	bindings := p.bindings(plan)
	if scope != nil {
		bindings = p.amendBindings(bindings, scope)
	}
	want := intercept.State{
		Bindings:             bindings,
		NodePorts:            p.cfg.NodePortAddresses.Prefixes(p.node),
		NoLocalhostNodePorts: p.cfg.NoLocalhostNodePorts,
		Pods:                 p.cfg.LocalPods.sources(p.node),
		HealthChecks:         p.healthCheckPorts(),
	}
	closed := want.NodePorts != nil && len(want.NodePorts) == 0
	if closed && !p.closed {
		p.log.Warn("NodePorts are closed: they are to be open at the node's primary addresses, and its status has none")
	}
	p.closed = closed
	return want
}

// restrictedNodePorts reports whether NodePorts are to be open at some of the node's addresses only.
func (p *Proxier) restrictedNodePorts() bool {
	return p.cfg.NoLocalhostNodePorts || p.cfg.NodePortAddresses.Prefixes(p.node) != nil
}

// bindings are the VIPs of the plan whose listeners exist, or that are to be dropped, in order. A VIP whose clients on this node
// should come to a frontend that could not be opened is for them what it is for others.
func (p *Proxier) bindings(plan *plan) []intercept.Binding {
	bindings := make([]intercept.Binding, 0, len(plan.owners))
	for key, vips := range plan.frontends {
		f, ok := p.frontends[key]
		if !ok {
			continue
		}
		f.asked = f.drops
		for _, v := range vips {
			if v.from == fromNode {
				continue // comes with those from elsewhere
			}
			b := intercept.Binding{VIP: v.VIP, Sources: v.sources, Owner: f.name}
			// To refuse clients instead takes a binding too, where the listener is shared.
			if !f.drops || f.shared != nil && limitsIn(key.family, p.cfg.Interceptor).Refuses {
				if b.Listen, ok = p.listener(key, v); !ok {
					continue
				}
			}
			if v.from == fromElsewhere {
				cluster := key
				cluster.pool = config.ClusterPool
				b.Local, _ = p.listener(cluster, v)
			}
			bindings = append(bindings, b)
		}
	}
	slices.SortFunc(bindings, func(a, b intercept.Binding) int { return compareVIPs(a.VIP, b.VIP) })
	return bindings
}

// listener is where a frontend listens for a VIP, or where its clients are refused; zero and false if it does not.
func (p *Proxier) listener(key frontendKey, v vip) (netip.AddrPort, bool) {
	f, ok := p.frontends[key]
	if !ok {
		return netip.AddrPort{}, false
	}
	addr := p.listenAddr(f, v.VIP)
	if !f.listensAt(addr) {
		return netip.AddrPort{}, false
	}
	if f.sharesAt(addr) && (!f.open || f.drops) {
		return p.refusal(v.VIP), true
	}
	return addr, true
}
