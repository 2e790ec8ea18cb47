package relay

import (
	"context"
	"net/netip"
	"os"
	"time"
)

// maxOrphans is how many a loop may have. Two are enough to learn that a backend is dead.
const maxOrphans = 64

// orphan is a dial that has lost against its rival and is waited for all the same, until it answers or has been silent for
// Config.TryTimeout: closed at once, it would say nothing about its backend, and a dead one would never be found out as
// long as others are there to win. It has the descriptor that its search was charged for.
type orphan struct {
	loop     *tcpLoop
	listener *Listener
	clientIP netip.Addr
	to       netip.AddrPort
	began    time.Duration
	fd       int
	slot     int32
	timer    timer
}

// loseRival is for a search that has found what it was looking for.
func (c *conn) loseRival() {
	s, lp, cfg := c.search, c.loop, &c.listener.relay.cfg
	r := &s.rival
	lasted := lp.now - r.began
	r.flying = false
	if lasted < cfg.TryTimeout && lasted >= c.hedgeDelay(r.to) && lp.orphans < maxOrphans {
		o := &orphan{loop: lp, listener: c.listener, clientIP: c.clientIP, to: r.to, began: r.began, fd: r.end.fd, slot: r.end.slot}
		o.timer.owner = o
		s.charged = false
		lp.orphans++
		lp.slots[o.slot].source = o
		lp.wheel.set(&o.timer, r.began+cfg.TryTimeout)
		return
	}
	r.end.close()
	c.listener.balancer.Report(c.clientIP, r.to, lasted, c.silence(lasted))
}

// event is told that it has answered after all, or refused.
func (o *orphan) event(events uint32) {
	if err := dialError(o.fd, events); err != nil && !hadConnected(err) {
		o.end(err)
	} else {
		o.end(context.Canceled)
	}
}

// alarm tells that it has not.
func (o *orphan) alarm() {
	if !dialOver(o.fd) { // otherwise the event is on its way
		o.end(os.ErrDeadlineExceeded)
	}
}

func (o *orphan) end(why error) {
	lp := o.loop
	defer lp.contain()
	lp.wheel.unset(&o.timer)
	lp.release(o.slot)
	closeRaw(o.fd)
	lp.orphans--
	lp.relay.fds.Release(1)
	o.listener.balancer.Report(o.clientIP, o.to, lp.now-o.began, why)
}
