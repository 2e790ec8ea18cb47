package proxy

import (
	"time"

	"redial/config"
)

// pending is what is wanted and needs rules that are not known to be written. Its zero value is nothing.
type pending struct {
	since     time.Time // when the oldest of it was asked for
	services  uint64    // changes of Services
	endpoints uint64    // changes of endpoints
	// triggered are the times of the oldest endpoint changes, for the latency of programming.
	triggered map[config.ServiceName]time.Time
}

// add joins what comes after p to it. Neither may be used afterwards.
func (p pending) add(later pending) pending {
	if p.since.IsZero() {
		p.since = later.since
	}
	p.services += later.services
	p.endpoints += later.endpoints
	if p.triggered == nil {
		p.triggered = later.triggered
		return p
	}
	for name, at := range later.triggered {
		p.trigger(name, at)
	}
	return p
}

func (p *pending) trigger(name config.ServiceName, at time.Time) {
	if p.triggered == nil {
		p.triggered = map[config.ServiceName]time.Time{}
	}
	if old, ok := p.triggered[name]; !ok || at.Before(old) {
		p.triggered[name] = at
	}
}

// Health tells whether what is wanted is in force. One Service that cannot be served, or one address that the kernel
// refuses, is a problem of that Service and does not show here: the node would be taken out of service for it.
type Health struct {
	// LastUpdated is when everything was last known to be in force: now, unless something is pending. It is zero before the
	// first sync has succeeded.
	LastUpdated time.Time
	// PendingSince is since when something is wanted that needs rules and has not got them; zero if there is no such thing.
	PendingSince time.Time
}

// Health returns the present health. It may be called at any time, from any goroutine.
func (p *Proxier) Health() Health {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := Health{PendingSince: p.pendingSince()}
	switch {
	case !p.hasSynced():
	case h.PendingSince.IsZero():
		h.LastUpdated = time.Now()
	default:
		h.LastUpdated = h.PendingSince
	}
	return h
}

// Synced is closed when the rules have been written for the first time.
func (p *Proxier) Synced() <-chan struct{} { return p.synced }

func (p *Proxier) hasSynced() bool {
	select {
	case <-p.synced:
		return true
	default:
		return false
	}
}

// The methods below need p.mu.

// pendingSince is since when there is something that no sync has written.
func (p *Proxier) pendingSince() time.Time {
	if p.syncing.since.IsZero() {
		return p.queued.since
	}
	return p.syncing.since
}

// ask asks for a sync.
func (p *Proxier) ask() {
	p.sync.Queued = time.Now()
	if p.queued.since.IsZero() {
		p.queued.since = p.sync.Queued
	}
	p.runner.ask()
}

// pickUp tells that a sync that begins will see to all that is queued.
func (p *Proxier) pickUp() {
	p.syncing = p.syncing.add(p.queued)
	p.queued = pending{}
}

// written tells that the sync has succeeded.
func (p *Proxier) written() {
	for _, at := range p.syncing.triggered {
		p.programmed(at)
	}
	p.syncing = pending{}
	if !p.hasSynced() {
		close(p.synced)
	}
}

// programmed tells the observer that a change that happened at that time is in force.
func (p *Proxier) programmed(at time.Time) {
	if p.cfg.Observer != nil {
		// The time was taken by the clock of another machine.
		p.cfg.Observer.Programmed(max(0, time.Since(at)))
	}
}
