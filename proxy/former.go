package proxy

import (
	"net/netip"
	"slices"
	"time"

	"redial/config"
	"redial/proxy/relay"
)

// Connections outlive their listener. If their Service port is still there, which has moved to another proxy port, lost an
// address or changed its policy, they end with their endpoints all the same, as those of open listeners do. If the port is
// gone, so are its endpoints. How long after that they end, or whether at all, is the Service's to say
// (config.Settings.DrainTimeout).

// drainOf is that in the words of [relay.Listener.Retain].
func drainOf(port *config.ServicePort) time.Duration {
	return port.Settings.Value().DrainTimeout.Or(-1)
}

// left takes note of listeners of a Service port that have been closed.
func (p *Proxier) left(name config.ServicePortName, closed []*relay.Listener) {
	if p.servicePort(name) != nil { // otherwise they have been told
		p.keepFormer(name, append(p.former[name], closed...))
	}
}

// keepFormer forgets those that have no connections any more.
func (p *Proxier) keepFormer(name config.ServicePortName, listeners []*relay.Listener) {
	listeners = slices.DeleteFunc(listeners, func(l *relay.Listener) bool { return l.Stats().Active == 0 })
	if len(listeners) == 0 {
		delete(p.former, name)
	} else {
		p.former[name] = listeners
	}
}

// retainFormer has the connections of closed listeners end with their endpoints.
func (p *Proxier) retainFormer(port *config.ServicePort) {
	if len(p.former[port.Name]) == 0 {
		return
	}
	p.keepFormer(port.Name, p.former[port.Name])
	var kept []netip.AddrPort
	for _, family := range config.Families {
		kept = slices.Concat(kept, config.Serving(port.Endpoints, family), config.Usable(port.Endpoints, family, config.ClusterPool, p.node))
	}
	for _, l := range p.former[port.Name] {
		l.Retain(kept, drainOf(port))
	}
}

// gone lets go of what there is for a Service port that is no more. Its frontends are closed by the next sync.
func (p *Proxier) gone(port *config.ServicePort) {
	listeners := p.former[port.Name]
	for key := range frontendKeys(port.Name) {
		if f, ok := p.frontends[key]; ok {
			listeners = append(listeners, f.tcp()...)
		}
	}
	if after := drainOf(port); after >= 0 {
		for _, l := range listeners {
			l.Retain(nil, after)
		}
	}
	delete(p.former, port.Name)
	delete(p.limits, port.Name)
}
