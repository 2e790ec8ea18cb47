package balancer

import (
	"net/netip"
	"time"
)

// BackendStatus is what a Balancer knows of one usable backend. The counts begin when the backend enters the set;
// Active alone includes connections from before, if it had left and returned while they were open.
type BackendStatus struct {
	Addr          netip.AddrPort
	Active        int64     // connections reported and not yet released
	Picked        uint64    // times handed out by Pick
	Connected     uint64    // dials reported successful
	Failed        uint64    // dials reported failed
	LastError     string    // of the last failed dial; empty if none failed
	LastErrorTime time.Time // zero if none failed
}

// Len returns the number of usable backends.
func (b *Balancer) Len() int { return len(b.view.Load().backends) }

// Backends returns the usable backends, sorted by address.
func (b *Balancer) Backends() []BackendStatus {
	v := b.view.Load()
	list := make([]BackendStatus, len(v.backends))
	for i, be := range v.backends {
		list[i] = BackendStatus{
			Addr:      be.addr,
			Active:    be.active.Load(),
			Picked:    be.picked.Load(),
			Connected: be.connected.Load(),
			Failed:    be.failed.Load(),
		}
		if last := be.last.Load(); last != nil {
			list[i].LastError, list[i].LastErrorTime = last.err.Error(), last.at
		}
	}
	return list
}

// Pins returns the number of clients now held to a backend by affinity. It looks at every pin: for status pages, not
// for the path of a connection.
func (b *Balancer) Pins() int {
	v := b.view.Load()
	if v.pins == nil {
		return 0
	}
	return v.pins.count(v, b.now())
}

// Evictions returns how many pins have been forgotten because there were too many clients, since New.
func (b *Balancer) Evictions() uint64 { return b.evictions.Load() }
