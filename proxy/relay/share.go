package relay

import (
	"fmt"
	"time"
)

// Connections that are not ended by anybody stay, and a Service that collects them would in the end have all there may be.
// So a listening socket has to leave some to the others: it may have freeShare times as many as are left. Alone it gets 7/8
// of all; two that want as many as they can get have 7/15 each and leave 1/15, and so on: there is always room for one
// more (dynamic thresholds, as switches use for their buffers). What it may not have yet waits in the kernel's accept
// queue, where it takes no descriptor.
const (
	freeShare = 7
	anyShare  = 32                    // connections that a listener may have however few are left
	shareTime = 10 * time.Millisecond // between looks whether there may be more
)

// mayAccept reports whether there may be one more connection of this socket. Otherwise it looks again later.
func (a *acceptor) mayAccept() bool {
	r := a.relay
	left, most := r.left(), r.maxConnections()
	if most-left <= freeShare*left { // if they were all of this socket, it might
		a.held = false
		return true
	}
	own := a.active()
	if left > 0 && own <= freeShare*left || own < anyShare && r.live.Load() < most {
		a.held = false
		return true
	}
	if !a.held {
		a.held = true
		a.counters().shareWaits.Add(1)
		r.complain(fmt.Errorf("%s has %d of %d connections", a.name(), own, most),
			"new connections wait for others of their Service to end: raise the limit (ulimit -n, --max-connections), or bound the Service's own (annotation redial/max-connections)")
	}
	a.jammed = true
	a.loop.wheel.set(&a.timer, a.loop.now+shareTime)
	return false
}

func (a *acceptor) name() string {
	if a.owner != nil {
		return a.owner.name
	}
	return fmt.Sprintf("all that share %s", a.addr)
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

// active is how many connections of the socket there are, whosever they are.
func (a *acceptor) active() (n int64) {
	if a.owner != nil {
		return a.owner.active()
	}
	counted := map[*Listener]bool{}
	for _, l := range a.routes {
		if !counted[l] {
			counted[l] = true
			n += l.active()
		}
	}
	return n
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
