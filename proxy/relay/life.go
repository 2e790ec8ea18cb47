package relay

import (
	"math/rand/v2"
	"net/netip"
	"time"
)

// How a connection ends that nobody has ended: because it is idle, too old, or its backend has left the set. It is closed on
// both sides, as a backend would, or reset if that would lose bytes unnoticed. One that is not idle goes on for a while,
// until the backend has had the last word and nothing is on its way to it: to be cut in the middle of an answer is worse
// than to be late. A backend that sends much may leave gaps, so the last word is one that nothing follows for a moment; but
// to a client that never rests this long, any moment will do in the end.

// endPatience is how long it may go on, restfulPatience for how long of that it has to rest.
const endPatience, restfulPatience = 5 * time.Second, 2 * time.Second

// retained is what Listener.Retain was told.
type retained struct {
	usable    map[netip.AddrPort]struct{}
	at, after time.Duration
}

// retain looks at all connections of l.
func (lp *tcpLoop) retain(l *Listener) {
	for i := range lp.slots {
		if e, ok := lp.slots[i].source.(*end); ok && e.conn.listener == l && e == &e.conn.backend {
			e.conn.stay()
		}
	}
}

// stay looks at one of them.
func (c *conn) stay() {
	defer c.contain()
	if c.state == relaying {
		c.live()
	}
}

// born begins the connection's life.
func (c *conn) born() {
	c.ageAt, c.leftAt, c.retained, c.graceEnd = 0, 0, nil, 0
	if age := c.settings.MaxConnectionAge; age > 0 {
		c.ageAt = c.loop.now + time.Duration(float64(age)*(0.9+0.2*rand.Float64()))
	}
	if c.ageAt > 0 || c.settings.IdleTimeout > 0 || c.listener.retained.Load() != nil {
		c.live()
	}
}

// live ends the connection if it is time, or sets the timer for when it will be.
func (c *conn) live() {
	now, idle := c.loop.now, c.settings.IdleTimeout
	c.heed(c.listener.retained.Load())
	switch {
	case due(c.ageAt, now):
		c.retire(&c.stats.aged)
		return
	case due(c.leaveAt(), now):
		c.retire(&c.stats.drained)
		return
	}
	for _, at := range []time.Duration{c.ageAt, c.leaveAt()} {
		if at > 0 {
			c.wakeBy(at)
		}
	}
	if idle == 0 {
		return
	}
	if now-c.moved >= idle && !c.taken() {
		c.stats.idle.Add(1)
		c.leaveQuietly()
		return
	}
	c.wakeBy(c.moved + idle)
}

// heed decides when the connection has to end for its backend's sake.
func (c *conn) heed(r *retained) {
	if r == c.retained {
		return
	}
	c.retained = r
	switch {
	case r.keeps(c.to):
		c.leftAt = 0
	case c.leftAt == 0:
		c.leftAt = max(r.at, c.started, 1)
	}
	if now := c.loop.now; !due(c.ageAt, now) && !due(c.leaveAt(), now) {
		c.graceEnd = 0
	}
}

// keeps reports whether connections to backend are left alone.
func (r *retained) keeps(backend netip.AddrPort) bool {
	if r == nil {
		return true
	}
	_, usable := r.usable[backend]
	return usable
}

// leaveAt is when the connection has to end for its backend's sake; 0: it need not.
func (c *conn) leaveAt() time.Duration {
	if c.leftAt == 0 {
		return 0
	}
	return c.leftAt + c.retained.after
}

// due reports whether that time, if there is one, has come.
func due(at, now time.Duration) bool { return at > 0 && now >= at }

// taken reports that a slow receiver has taken bytes out of a send buffer since the last look, which is a movement, too.
func (c *conn) taken() bool {
	left := unsent(c.client.fd) + unsent(c.backend.fd)
	if left == 0 || left == c.left {
		return false
	}
	c.left, c.moved = left, c.loop.now
	return true
}

// retire ends the connection when nothing is on its way, or is for too long, and counts that.
func (c *conn) retire(count interface{ Add(uint64) uint64 }) {
	now := c.loop.now
	if c.graceEnd == 0 {
		c.graceEnd, c.pause = now+endPatience, shortestPause
	}
	rests := now-c.moved >= longestPause || c.graceEnd-now <= endPatience-restfulPatience
	if !(rests && c.rested && c.quiet()) && now < c.graceEnd {
		c.wakeBy(now + c.pause)
		c.pause = min(2*c.pause, longestPause)
		return
	}
	count.Add(1)
	c.leaveQuietly()
}

// leaveQuietly closes both sides, or resets them if that would lose bytes unnoticed.
func (c *conn) leaveQuietly() {
	if c.quiet() {
		c.end()
	} else {
		c.abort()
	}
}

// quiet reports that nothing is on its way, but perhaps from the kernel to the client, whom it reaches before the FIN.
func (c *conn) quiet() bool {
	return !c.in.pending() && !c.out.pending() && unread(c.client.fd) == 0 && unread(c.backend.fd) == 0 && unsent(c.backend.fd) == 0
}
