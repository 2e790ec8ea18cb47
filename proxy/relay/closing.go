package relay

import "time"

// resetPatience is how long bytes that precede a reset may fail to make any progress before the reset overtakes them.
const resetPatience = 5 * time.Second

// halfClose limits how long the direction that is left may be idle.
func (c *conn) halfClose() {
	c.halfClosed = true
	c.moved = c.loop.now
	c.wakeBy(c.moved + c.listener.relay.cfg.HalfCloseTimeout)
}

// wakeBy sets the timer unless it is set for an earlier time: then last comes back to this one.
func (c *conn) wakeBy(at time.Duration) {
	if c.timer.set {
		at = min(at, time.Duration(c.timer.due)*tick)
	}
	c.loop.wheel.set(&c.timer, at)
}

// linger is the timer of a half-closed connection. Every byte renews its time, also one that a slow receiver has taken
// out of the send buffer.
func (c *conn) linger() {
	limit := c.listener.relay.cfg.HalfCloseTimeout
	if c.loop.now-c.moved >= limit {
		left := unsent(c.client.fd) + unsent(c.backend.fd)
		if left == 0 || left == c.left {
			c.expired = true
			c.abort()
			return
		}
		c.left, c.moved = left, c.loop.now
	}
	c.wakeBy(c.moved + limit)
}

// passReset begins the end of a connection whose src has reset it or vanished: dst is reset too, once it has everything
// that src sent before. The other direction has nobody left to write for.
func (c *conn) passReset(h *half) {
	c.state, c.broken, c.reset = resetting, true, h
	other := &c.in
	if h == other {
		other = &c.out
	}
	other.drop()
	other.done = true
	c.left, c.moved = -1, c.loop.now
	c.pause = shortestPause
	c.lookAgain()
}

const shortestPause, longestPause = time.Millisecond, 50 * time.Millisecond

// lookAgain sees whether dst has everything. The kernel has no event for that, so it is asked again, and given up when the
// number stands still.
func (c *conn) lookAgain() {
	h := c.reset
	h.move()
	if h.dst.gone {
		c.abort()
		return
	}
	left, moved := unsent(h.dst.fd), h.eof && !h.pending()
	if left != c.left {
		c.left, c.moved = left, c.loop.now
	}
	if moved && left == 0 || c.loop.now-c.moved >= resetPatience {
		c.abort()
		return
	}
	c.loop.wheel.set(&c.timer, c.loop.now+c.pause)
	c.pause = min(2*c.pause, longestPause)
}
