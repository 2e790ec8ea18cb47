package relay

import "time"

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

	// UDPTimeout is Config.UDPTimeout of this listener, kept to the second; 0: that. It concerns UDP only, and nothing else
	// here does.
	UDPTimeout time.Duration
}

// Configure replaces the settings. They apply to connections that begin afterwards. It may be called at any time.
func (l *Listener) Configure(s Settings) { l.settings.Store(s.resolve(&l.relay.cfg)) }

// Configure replaces the settings, for sessions that exist as well. It may be called at any time.
func (l *UDPListener) Configure(s Settings) { l.settings.Store(s.resolve(&l.relay.cfg)) }

func (s Settings) resolve(cfg *Config) *Settings {
	if s.DialTimeout == 0 {
		s.DialTimeout = cfg.DialTimeout
	}
	if s.UDPTimeout == 0 {
		s.UDPTimeout = cfg.UDPTimeout
	}
	return &s
}
