package relay

import "sync/atomic"

// Stats counts what happened on one listener since it was opened. Every accepted connection ends up in exactly one of
// Connected, Failed, NoBackend, Abandoned and Limited.
type Stats struct {
	Accepted  uint64 `json:"accepted"`  // client connections taken from the kernel
	Connected uint64 `json:"connected"` // ... that reached a backend
	Failed    uint64 `json:"failed"`    // ... reset because every backend refused or the dial budget was spent
	NoBackend uint64 `json:"noBackend"` // ... reset because there was no backend to try
	Abandoned uint64 `json:"abandoned"` // ... whose client left before a backend answered
	Limited   uint64 `json:"limited"`   // ... reset because there were as many as there may be
	Retried   uint64 `json:"retried"`   // connections that reached a backend by another dial than their first; sessions answered by another after a refusal
	Retries   uint64 `json:"retries"`   // dials made after a failed one

	Queued        uint64 `json:"queued"`        // connections that waited for others to end
	QueueTimeouts uint64 `json:"queueTimeouts"` // ... for too long; they are among Limited

	Hedges      uint64 `json:"hedges"`      // dials made beside a silent one
	EarlyCloses uint64 `json:"earlyCloses"` // backends that closed or reset a connection before a byte had moved

	Active       int64  `json:"active"`       // connections between accept and close
	BytesIn      uint64 `json:"bytesIn"`      // from clients to backends
	BytesOut     uint64 `json:"bytesOut"`     // from backends to clients
	Resets       uint64 `json:"resets"`       // connections that ended by a reset or timeout of either peer
	HalfClosed   uint64 `json:"halfClosed"`   // connections cut after HalfCloseTimeout
	Idle         uint64 `json:"idle"`         // connections ended after IdleTimeout
	Aged         uint64 `json:"aged"`         // ... after MaxConnectionAge
	Drained      uint64 `json:"drained"`      // ... because their backend had left; UDP sessions, too
	AcceptErrors uint64 `json:"acceptErrors"` // accept(2) failures: out of descriptors or memory
	FDWaits      uint64 `json:"fdWaits"`      // connections that waited for file descriptors
	ShareWaits   uint64 `json:"shareWaits"`   // times that connections began to wait as the Service had as many as it may have of all there are

	Strays uint64 `json:"strays,omitempty"` // connections that were reset and not counted as accepted, since what they had dialled is nobody's here

	// Of UDP only:
	DatagramsIn  uint64 `json:"datagramsIn,omitempty"`  // from clients
	DatagramsOut uint64 `json:"datagramsOut,omitempty"` // to clients
	Dropped      uint64 `json:"dropped,omitempty"`      // datagrams of either direction that could not be sent on
	Overflows    uint64 `json:"overflows,omitempty"`    // datagrams the kernel dropped for want of receive buffer
	Expired      uint64 `json:"expired,omitempty"`      // sessions that ended by being idle
	Evicted      uint64 `json:"evicted,omitempty"`      // sessions that ended to make room for others
}

// counters belong to one loop each, so that loops do not pass cache lines to each other all the time.
type counters struct {
	accepted, connected, failed, noBackend, abandoned, retried, retries              atomic.Uint64
	idle, aged, drained                                                              atomic.Uint64
	limited, queued, queueTimeouts, hedges, earlyCloses                              atomic.Uint64
	active                                                                           atomic.Int64
	bytesIn, bytesOut, resets, halfClosed, acceptErrors, fdWaits, shareWaits, strays atomic.Uint64
	datagramsIn, datagramsOut, dropped, overflows, expired, evicted                  atomic.Uint64
}

func (c *counters) snapshot() Stats {
	return Stats{
		Accepted: c.accepted.Load(), Connected: c.connected.Load(), Failed: c.failed.Load(),
		NoBackend: c.noBackend.Load(), Abandoned: c.abandoned.Load(),
		Retried: c.retried.Load(), Retries: c.retries.Load(), Limited: c.limited.Load(), Queued: c.queued.Load(), QueueTimeouts: c.queueTimeouts.Load(),
		Hedges: c.hedges.Load(), EarlyCloses: c.earlyCloses.Load(),
		Active: c.active.Load(), BytesIn: c.bytesIn.Load(), BytesOut: c.bytesOut.Load(),
		Resets: c.resets.Load(), HalfClosed: c.halfClosed.Load(),
		Idle: c.idle.Load(), Aged: c.aged.Load(), Drained: c.drained.Load(),
		AcceptErrors: c.acceptErrors.Load(), FDWaits: c.fdWaits.Load(), ShareWaits: c.shareWaits.Load(), Strays: c.strays.Load(),
		DatagramsIn: c.datagramsIn.Load(), DatagramsOut: c.datagramsOut.Load(), Dropped: c.dropped.Load(),
		Overflows: c.overflows.Load(), Expired: c.expired.Load(), Evicted: c.evicted.Load(),
	}
}

// ended is what s is when the listener is no more: nothing is active.
func (s Stats) ended() Stats {
	s.Active = 0
	return s
}

// Add returns the sum of s and o.
func (s Stats) Add(o Stats) Stats {
	return Stats{
		Accepted: s.Accepted + o.Accepted, Connected: s.Connected + o.Connected, Failed: s.Failed + o.Failed,
		NoBackend: s.NoBackend + o.NoBackend, Abandoned: s.Abandoned + o.Abandoned,
		Retried: s.Retried + o.Retried, Retries: s.Retries + o.Retries, Limited: s.Limited + o.Limited, Queued: s.Queued + o.Queued, QueueTimeouts: s.QueueTimeouts + o.QueueTimeouts,
		Hedges: s.Hedges + o.Hedges, EarlyCloses: s.EarlyCloses + o.EarlyCloses,
		Active: s.Active + o.Active, BytesIn: s.BytesIn + o.BytesIn, BytesOut: s.BytesOut + o.BytesOut,
		Resets: s.Resets + o.Resets, HalfClosed: s.HalfClosed + o.HalfClosed,
		Idle: s.Idle + o.Idle, Aged: s.Aged + o.Aged, Drained: s.Drained + o.Drained,
		AcceptErrors: s.AcceptErrors + o.AcceptErrors, FDWaits: s.FDWaits + o.FDWaits, ShareWaits: s.ShareWaits + o.ShareWaits, Strays: s.Strays + o.Strays,
		DatagramsIn: s.DatagramsIn + o.DatagramsIn, DatagramsOut: s.DatagramsOut + o.DatagramsOut, Dropped: s.Dropped + o.Dropped,
		Overflows: s.Overflows + o.Overflows, Expired: s.Expired + o.Expired, Evicted: s.Evicted + o.Evicted,
	}
}
