package relay

import (
	"context"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
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
	r := &c.search.rival
	r.flying = false
	lasted := c.loop.now - r.began
	if lasted >= c.hedgeDelay(r.to) && c.orphan(r) {
		return
	}
	r.end.close()
	c.listener.balancer.Report(c.clientIP, r.to, lasted, c.silence(lasted))
}

// orphan lets go of a dial, if there may be one more orphan.
func (c *conn) orphan(r *rival) bool {
	lp, patience := c.loop, c.listener.relay.cfg.TryTimeout
	if lp.now-r.began >= patience || lp.orphans >= maxOrphans {
		return false
	}
	o := &orphan{loop: lp, listener: c.listener, clientIP: c.clientIP, to: r.to, began: r.began, fd: r.end.fd, slot: r.end.slot}
	o.timer.owner = o
	c.search.charged = false
	lp.orphans++
	lp.slots[o.slot].source = o
	lp.wheel.set(&o.timer, r.began+patience)
	return true
}

// event is told that it has answered after all, or refused.
func (o *orphan) event(events uint32) {
	err := dialError(o.fd, events)
	switch {
	case err == nil && events&unix.EPOLLOUT == 0:
		return
	case hadConnected(err):
		err = context.Canceled
	}
	o.end(err)
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
	if why == nil {
		o.listener.balancer.Release(o.to)
	}
}
