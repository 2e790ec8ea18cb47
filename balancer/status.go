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
	ConnectTime   time.Duration // what its dials have taken lately, by a moving average; 0: not known
	HedgeDelay    time.Duration // as HedgeDelay
	// EjectedUntil is when an ejected backend is tested next, which may be past while the test is going on. Zero: the
	// backend is not ejected.
	EjectedUntil time.Time
	// EjectedSince is when it was ejected, and EjectionError the failure, of a connection or a test, that has done so or
	// made it longer. Zero and empty unless it is ejected.
	EjectedSince  time.Time
	EjectionError string
	// Ejections is how many times it has been ejected in a row, this time included. A backend that is back keeps the
	// number for some minutes.
	Ejections int
}

// Counters are what has happened to the backends of a Balancer since New.
type Counters struct {
	Suspicions     uint64 `json:"suspicions"`     // begun, see Overdue
	Ejections      uint64 `json:"ejections"`      // begun, or made longer by a failed test
	ProbesAnswered uint64 `json:"probesAnswered"` // ejections ended by the prober
	ProbesFailed   uint64 `json:"probesFailed"`
	Full           uint64 `json:"full"`           // picks in vain because all backends were at MaxPerBackend
	RetriesRefused uint64 `json:"retriesRefused"` // dials after a failed one that the retry budget did not allow
	Evictions      uint64 `json:"evictions"`      // pins forgotten because there were too many clients
}

// Add returns the sum of c and o.
func (c Counters) Add(o Counters) Counters {
	return Counters{
		Suspicions: c.Suspicions + o.Suspicions,
		Ejections:  c.Ejections + o.Ejections, ProbesAnswered: c.ProbesAnswered + o.ProbesAnswered, ProbesFailed: c.ProbesFailed + o.ProbesFailed,
		Full: c.Full + o.Full, RetriesRefused: c.RetriesRefused + o.RetriesRefused, Evictions: c.Evictions + o.Evictions,
	}
}

// Ejection is news of a backend: it is ejected, or back. A test that fails while it is ejected is none.
type Ejection struct {
	Backend netip.AddrPort
	Back    bool      // it is over
	Since   time.Time // when it began
	Until   time.Time // if it is not over, when the backend is tested
	Err     error     // the latest failure that was a reason
	// Ejected is how many are ejected now, of so many Backends.
	Ejected, Backends int
}

// Watch has f called for each Ejection. It must be called before the first Update. f is called by whoever dials or probes:
// it has to be quick, and must not call the Balancer.
func (b *Balancer) Watch(f func(Ejection)) { b.watch = f }

func (b *Balancer) tell(be *backend, e *ejection) {
	if b.watch == nil {
		return
	}
	news := Ejection{Backend: be.addr, Back: e.back, Since: b.born.Add(e.since), Err: e.why, Ejected: b.Ejected(), Backends: b.Len()}
	if !e.back {
		news.Until = b.born.Add(e.until)
	}
	b.watch(news)
}

// Ejected returns how many usable backends are ejected now.
func (b *Balancer) Ejected() (n int) {
	for _, be := range b.view.Load().backends {
		if be.ejection.Load().out() {
			n++
		}
	}
	return n
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
			HedgeDelay: b.hedge(be), ConnectTime: be.connects.average(),
		}
		if last := be.last.Load(); last != nil {
			list[i].LastError, list[i].LastErrorTime = last.err.Error(), last.at
		}
		if e := be.ejection.Load(); e != nil {
			list[i].Ejections = e.times
			if e.out() {
				list[i].EjectedUntil, list[i].EjectedSince = b.born.Add(e.until), b.born.Add(e.since)
				list[i].EjectionError = e.why.Error()
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
		RetriesRefused: b.counts.retriesRefused.Load(),
		Evictions:      b.evictions.Load(),
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
