package relay

import (
	"fmt"
	"time"
)

// Connections that are not ended by anybody stay, and a Service that collects them would in the end have all there may be.
// So a listener has to leave some to the others: it may have freeShare times as many as are left. Alone it gets 7/8
// of all; two that want as many as they can get have 7/15 each and leave 1/15, and so on: there is always room for one
// more (dynamic thresholds, as switches use for their buffers). What it may not have yet waits in the kernel's accept
// queue, where it takes no descriptor; but in a queue that it shares it would keep the others waiting, and is reset.
const (
	freeShare = 7
	anyShare  = 32                    // connections that a listener may have however few are left
	shareTime = 10 * time.Millisecond // between looks whether there may be more
)

// mayAccept reports whether there may be one more connection of this socket. Otherwise it looks again later. Where it is
// shared, whose that will be, and with that whether it may be, is not known yet: see admit.
func (a *acceptor) mayAccept() bool {
	r := a.relay
	if a.owner != nil && a.owner.mayHaveMore() || a.owner == nil && r.live.Load() < r.maxConnections() {
		a.held = false
		return true
	}
	if !a.held {
		a.held = true
		a.counters().shareWaits.Add(1)
		if a.owner != nil {
			a.owner.complainOfShare("new connections wait for others of their Service to end")
		} else {
			r.complain(fmt.Errorf("there are all of %d connections", r.maxConnections()), "new connections wait for others to end: raise the limit (ulimit -n, --max-connections)")
		}
	}
	a.jammed = true
	a.loop.wheel.set(&a.timer, a.loop.now+shareTime)
	return false
}

// mayHaveMore reports whether l may have one more connection.
func (l *Listener) mayHaveMore() bool {
	left, most := l.relay.left(), l.relay.maxConnections()
	if most-left <= freeShare*left { // if they were all of this one, it might
		return true
	}
	own := l.active()
	return left > 0 && own <= freeShare*left || own < anyShare && l.relay.live.Load() < most
}

func (l *Listener) complainOfShare(what string) {
	l.relay.complain(fmt.Errorf("%s has %d of %d connections", l.name, l.active(), l.relay.maxConnections()),
		what+": raise the limit (ulimit -n, --max-connections), or bound the Service's own (annotation redial/max-connections)")
}

// left is how many more connections there may be.
func (r *Relay) left() int64 {
	left := (r.fds.most - r.fds.used.Load()) / fdsPerConnection
	if most := int64(r.cfg.MaxConnections); most > 0 {
		left = min(left, most-r.live.Load())
	}
	return left
}

// maxConnections is how many connections there may be at all.
func (r *Relay) maxConnections() int64 {
	most := r.fds.most / fdsPerConnection
	if r.cfg.MaxConnections > 0 {
		most = min(most, int64(r.cfg.MaxConnections))
	}
	return most
}

// active is how many connections l has.
func (l *Listener) active() (n int64) {
	for i := range l.stats {
		if c := l.stats[i].Load(); c != nil {
			n += c.active.Load()
		}
	}
	return n
}
