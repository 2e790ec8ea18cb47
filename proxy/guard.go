package proxy

import (
	"net/netip"

	"redial/config"
	"redial/proxy/relay"
)

// guard has a frontend with a port of its own take connections for its VIPs only, as long as rules may be in force that an
// earlier process has written: these lead clients to where it listened, and who has which port may have changed,
// above all where there are fewer ports than frontends.
func (p *Proxier) guard(f *frontend, vips []vip) {
	if f.shared != nil || f.key.name.Protocol != config.TCP || p.hasSynced() || limitsIn(f.key.family, p.cfg.Interceptor).OwnListeners {
		return
	}
	f.guarded = make([]netip.AddrPort, len(vips))
	for i, v := range vips {
		f.guarded[i] = destination(v)
	}
	for _, l := range f.listeners {
		l.listener.(*relay.Listener).Confine(f.guarded)
	}
}

// unguard ends that.
func (f *frontend) unguard() {
	if f.guarded == nil {
		return
	}
	f.guarded = nil
	for _, l := range f.listeners {
		l.listener.(*relay.Listener).Confine(nil)
	}
}
