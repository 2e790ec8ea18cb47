package proxy

import (
	"errors"
	"fmt"
	"slices"

	"redial/config"
	"redial/proxy/relay"
)

// share has a frontend that listens on its VIPs themselves share a port for those that it does not listen on yet. Such
// frontends take no proxy ports, so that it is descriptors alone that there can be too few of. NodePorts keep listeners of their
// own: what leads to the shared ones is a look-up of the VIP ([intercept.Sharer]).
func (p *Proxier) share(f *frontend, vips []vip) error {
	first := slices.IndexFunc(vips, func(v vip) bool { return !v.NodePort() })
	if first < 0 {
		return nil
	}
	shared, err := p.sharedListener(f.key, vips[first:])
	if err == nil {
		f.shared, f.port = shared, shared.Addr().Port()
	}
	return err
}

// listen opens the listeners that f lacks. Where it is to listen on VIPs themselves, and there may be no more listeners, it
// shares one for the rest.
func (p *Proxier) listen(f *frontend, vips []vip) error {
	err := f.listen(p.cfg.Relay, p.listenAddrs(f, vips))
	if !errors.Is(err, relay.ErrTooManyListeners) || f.shared != nil || p.needsPort(vips) || f.key.name.Protocol != config.TCP {
		return err
	}
	why := p.sharing.unable[f.key.family]
	switch {
	case p.mayShare(f.key):
		why = p.share(f, vips)
	case why == nil:
		why = errors.New("there are too few proxy ports: widen --proxy-port-range")
	}
	if why != nil {
		return fmt.Errorf("%w; sharing listeners is not possible: %w", err, why)
	}
	return f.listen(p.cfg.Relay, p.listenAddrs(f, vips))
}
