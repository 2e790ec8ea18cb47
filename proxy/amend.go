package proxy

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"redial/config"
	"redial/proxy/intercept"
	"redial/proxy/relay"
)

// amendments are the Services whose change a sync is for, each as it was when the one before began; nil: there was none.
// With many Services that is far less work than to go through all.
type amendments map[config.ServiceName]*config.Service

// amended notes that the next sync is, among others, for a Service, which was old.
func (p *Proxier) amended(name config.ServiceName, old *config.Service) {
	if _, known := p.amend[name]; !known {
		p.amend[name] = old
	}
}

// scope takes what the next sync is for. Nil: for everything, as after a failure, or where a problem of one Service may be
// solved by what happens to another.
func (p *Proxier) scope() amendments {
	amend, full := p.amend, p.full || !p.hasSynced() || p.problems.shared()
	p.amend, p.full = amendments{}, false
	if full {
		return nil
	}
	return amend
}

// planFor plans for the scope alone. It returns false if others are concerned: one has a VIP that is asked for, or the
// Interceptor is to prepare for all that there are, since the proxy listens on VIPs themselves.
func (p *Proxier) planFor(scope amendments) (plan, bool) {
	some := make(services, len(scope))
	for name := range scope {
		if s := p.wanted[name]; s != nil {
			some[name] = s
		}
	}
	plan := buildPlan(some, p.owners)
	for v := range plan.owners { // also if it is not going to be served
		if owner, taken := p.owners[v]; taken {
			if _, ours := scope[owner.Service]; !ours {
				return plan, false
			}
		}
	}
	p.confine(&plan)
	for v := range plan.owners {
		if p.listensOn(v) {
			return plan, false
		}
	}
	for v := range p.given(scope) {
		if p.listensOn(v) {
			return plan, false
		}
	}
	return plan, true
}

// listensOn reports whether the Interceptor has the proxy listen on a VIP itself.
func (p *Proxier) listensOn(v intercept.VIP) bool {
	return p.cfg.Interceptor.BindAddr(v, 0).Port() != 0
}

// given are the VIPs that Services of the scope had.
func (p *Proxier) given(scope amendments) iter.Seq[intercept.VIP] {
	return func(yield func(intercept.VIP) bool) {
		for _, old := range scope {
			if old == nil {
				continue
			}
			for i := range old.Ports {
				for _, v := range vipsOf(&old.Ports[i]) {
					if p.owners[v.VIP] == old.Ports[i].Name && !yield(v.VIP) {
						return
					}
				}
			}
		}
	}
}

// keys are the frontends that exist, in a scope: of the Services as they were, and as they are planned.
func (p *Proxier) keys(plan *plan, scope amendments) iter.Seq[frontendKey] {
	if scope == nil {
		return maps.Keys(p.frontends)
	}
	found := map[frontendKey]struct{}{}
	add := func(key frontendKey) {
		if _, exists := p.frontends[key]; exists {
			found[key] = struct{}{}
		}
	}
	for key := range plan.frontends {
		add(key)
	}
	for _, old := range scope {
		if old == nil {
			continue
		}
		for i := range old.Ports {
			for key := range frontendKeys(old.Ports[i].Name) {
				add(key)
			}
		}
	}
	return maps.Keys(found)
}

// amendBindings returns what is in force with what the plan of a scope changes of it. Both are sorted.
func (p *Proxier) amendBindings(changed []intercept.Binding, scope amendments) []intercept.Binding {
	gone := map[intercept.VIP]struct{}{}
	for v := range p.given(scope) {
		gone[v] = struct{}{}
	}
	out := make([]intercept.Binding, 0, len(p.inForce)+len(changed))
	for _, b := range p.inForce {
		for len(changed) > 0 && compareVIPs(changed[0].VIP, b.VIP) <= 0 {
			out, changed = append(out, changed[0]), changed[1:]
		}
		if len(out) > 0 && out[len(out)-1].VIP == b.VIP {
			continue
		}
		if _, found := gone[b.VIP]; !found {
			out = append(out, b)
		}
	}
	return append(out, changed...)
}

// unrouteSome is unroute for a scope.
func (p *Proxier) unrouteSome(plan *plan, scope amendments) {
	for key := range p.keys(plan, scope) {
		f := p.frontends[key]
		if f.shared == nil {
			continue
		}
		changes := map[netip.AddrPort]*relay.Listener{}
		for _, l := range f.listeners { // one
			for _, v := range f.vips {
				to := destination(v)
				mine := f.shared.routes[to] == l.listener.(*relay.Listener)
				if mine && !slices.ContainsFunc(plan.frontends[key], func(n vip) bool { return n.VIP == v.VIP }) {
					changes[to] = nil
					delete(f.shared.routes, to)
				}
			}
		}
		if len(changes) > 0 {
			f.shared.Route(changes)
		}
	}
}

// adopt makes the outcome of a scope's plan that of all.
func (p *Proxier) adopt(plan *plan, scope amendments) {
	for v := range p.given(scope) {
		delete(p.owners, v)
	}
	maps.Copy(p.owners, plan.owners)
}
