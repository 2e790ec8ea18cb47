package proxy

import (
	"time"

	"redial/config"
)

// Observer is told of durations as they happen, for histograms; everything that is counted is in [SyncStatus]. Its methods
// are called from different goroutines, with the Proxier locked: they must neither block nor call it.
type Observer interface {
	// Synced tells how long one sync took. full means that it had to assume nothing of what was in force: it was the first,
	// or followed one that failed, or repaired what others had changed. A nil err does not mean that every Service is served.
	Synced(took time.Duration, full bool, err error)
	// Programmed tells how long after the endpoint controller had seen a change of a Service's endpoints it took effect here.
	// Changes from before the Proxier's start are not told.
	Programmed(latency time.Duration)
}

// observe counts what changed from old to s. resync tells whether it needs rules; otherwise it is in force already.
func (p *Proxier) observe(name config.ServiceName, old, s *config.Service, resync bool) {
	var change pending
	if !sameShape(old, s) {
		change.services = 1
	}
	if !sameEndpoints(old, s) {
		change.endpoints = 1
	}
	p.sync.ServiceChanges += change.services
	p.sync.EndpointChanges += change.endpoints
	var at time.Time
	if s != nil {
		at = s.Triggered
	}
	known := !at.Before(p.started) // zero is long ago
	switch {
	case resync && known:
		change.trigger(name, at)
		fallthrough
	case resync:
		p.queued = p.queued.add(change)
	case known:
		p.programmed(at)
	}
}
