package balancer

import (
	"net/netip"
	"slices"
	"time"
)

// BackendStatus is what a Balancer knows of one usable backend. The counts begin when the backend enters the set;
// Active alone includes connections from before, if it had left and returned while they were open.
type BackendStatus struct {
	Addr          netip.AddrPort
	Weight        int           // 0: quiesced
	Active        int64         // connections reported and not yet released
	Picked        uint64        // times handed out by Pick
	Connected     uint64        // dials reported successful
	Failed        uint64        // dials reported failed
	LastError     string        // of the last failed dial; empty if none failed
	LastErrorTime time.Time     // zero if none failed
	HedgeDelay    time.Duration // as HedgeDelay
	// EjectedUntil is when an ejected backend is tested next, which may be past while the test is going on. Zero: the
	// backend is not ejected.
	EjectedUntil time.Time
	// Ejections is how many times it has been ejected in a row, this time included. A backend that is back keeps the
	// number for some minutes.
	Ejections int
}

// Counters are what has happened to the backends of a Balancer since New.
type Counters struct {
	Suspicions     uint64 // begun, see Overdue
	Ejections      uint64 // begun, or made longer by a failed test
	ProbesAnswered uint64 // ejections ended by the prober
	ProbesFailed   uint64
	Full           uint64 // picks in vain because all backends were at MaxPerBackend
}

// Len returns the number of usable backends.
func (b *Balancer) Len() int { return len(b.view.Load().backends) }

// Backends returns the usable backends, sorted by address.
func (b *Balancer) Backends() []BackendStatus {
	v := b.view.Load()
	list := make([]BackendStatus, len(v.backends))
	for i, be := range v.backends {
		list[i] = BackendStatus{
			Addr:       be.addr,
			Weight:     int(be.weight.Load()),
			Active:     int64(be.load.read().active()),
			Picked:     be.picked.Load(),
			Connected:  be.connected.Load(),
			Failed:     be.failed.Load(),
			HedgeDelay: b.hedge(be),
		}
		if last := be.last.Load(); last != nil {
			list[i].LastError, list[i].LastErrorTime = last.err.Error(), last.at
		}
		if e := be.ejection.Load(); e != nil {
			list[i].Ejections = e.times
			if e.out() {
				list[i].EjectedUntil = b.born.Add(e.until)
			}
		}
	}
	return list
}

// Counters returns the counters.
func (b *Balancer) Counters() Counters {
	return Counters{
		Suspicions:     b.counts.suspicions.Load(),
		Ejections:      b.counts.ejections.Load(),
		ProbesAnswered: b.counts.probesAnswered.Load(),
		ProbesFailed:   b.counts.probesFailed.Load(),
		Full:           b.counts.full.Load(),
	}
}

// countFull counts a pick that found nothing, if that is for the limit.
func (b *Balancer) countFull(r *request) {
	untried := func(be *backend) bool { return !slices.Contains(r.tried, be.addr) }
	if r.view.limit > 0 && slices.ContainsFunc(r.view.eligible, untried) {
		b.counts.full.Add(1)
	}
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
