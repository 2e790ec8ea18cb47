package relay

import (
	"net/netip"
	"time"
)

// Settings are what one listener does in its own way. The zero value is what the Relay's Config says.
type Settings struct {
	// DialTimeout is Config.DialTimeout of this listener; 0: that.
	DialTimeout time.Duration
	// Hedge is how long a backend may be silent before another one is dialled beside it, at most Config.TryTimeout. 0: what
	// Balancer.HedgeDelay says; negative: no backend is ever dialled beside another.
	Hedge time.Duration
	// MaxRetries is how many dials one connection may have after its first, those beside another included. 0: as many as
	// the dial budget has time for; negative: none.
	MaxRetries int
	// Limit bounds the connections; nil: they are not, and those that find all backends at their limits are refused. The
	// listeners of one Service port share one.
	Limit *Limit

	// ProxyProtocol is the version of the PROXY protocol header, 1 or 2, that backends get to see first; 0: none.
	ProxyProtocol uint8

	// IdleTimeout ends a connection on which nothing has moved for so long, in either direction. 0: never.
	IdleTimeout time.Duration
	// MaxConnectionAge ends a connection that is so old, up to a tenth more or less by chance, so that those that began
	// together do not end together. 0: never.
	MaxConnectionAge time.Duration

	// UDPTimeout is Config.UDPTimeout of this listener, kept to the second; 0: that. It concerns UDP only, and nothing else
	// here does.
	UDPTimeout time.Duration
}

// Configure replaces the settings. They apply to connections that begin afterwards. It may be called at any time.
func (l *Listener) Configure(s Settings) { l.settings.Store(l.relay.resolve(s)) }

// Retain has connections whose backend is not in usable end when it has not come back after so long; 0: at once. A
// negative time lets all connections be. What is said here holds until it is called again. Unless that is to
// let them be as ever, it looks at every connection of the Relay. It may be called at any time, after Close too: connections
// go on without their listener.
func (l *Listener) Retain(usable []netip.AddrPort, after time.Duration) {
	var r *retained
	if after >= 0 {
		r = &retained{usable: map[netip.AddrPort]struct{}{}, at: l.relay.clock(), after: after}
		for _, b := range usable {
			r.usable[b] = struct{}{}
		}
	}
	if l.retained.Swap(r) == nil && r == nil {
		return
	}
	l.relay.mu.Lock()
	loops := l.relay.tcpLoops
	l.relay.mu.Unlock()
	for _, lp := range loops {
		lp.do(func() { lp.retain(l) })
	}
}

// Configure replaces the settings, for sessions that exist as well. It may be called at any time.
func (l *UDPListener) Configure(s Settings) { l.settings.Store(l.relay.resolve(s)) }

// resolve returns s with nothing left to the Config. Listeners that ask for nothing, nearly all, share it.
func (r *Relay) resolve(s Settings) *Settings {
	if s == (Settings{}) {
		return &r.defaults
	}
	if s.DialTimeout == 0 {
		s.DialTimeout = r.cfg.DialTimeout
	}
	if s.UDPTimeout == 0 {
		s.UDPTimeout = r.cfg.UDPTimeout
	}
	return &s
}
