package relay

import (
	"errors"
	"time"
)

// A connection beyond a limit waits, accepted, first come, first served; see Limit.

var (
	errLimited      = errors.New("as many connections as there may be")
	errQueueTimeout = errors.New("waited for too long")
)

// enter begins the connection, or its wait for a slot.
func (c *conn) enter() {
	l := c.settings.Limit
	if l == nil || l.take() {
		c.limit = l
		c.find()
		return
	}
	c.state = waiting // before it may be admitted
	t, timeout := l.waitForSlot(c)
	c.wait(t, timeout)
}

func (c *conn) wait(t *ticket, timeout time.Duration) {
	if t == nil {
		c.giveUp(errLimited)
		return
	}
	if !c.waited {
		c.waited = true
		c.stats.queued.Add(1)
		c.waitLeft = timeout
	}
	c.state, c.ticket, c.waitSince = waiting, t, c.loop.now
	c.loop.wheel.set(&c.timer, c.loop.now+c.waitLeft)
}

// waitIsOver is for a connection that has waited, and returns how long.
func (c *conn) waitIsOver() time.Duration {
	waited := c.loop.now - c.waitSince
	c.waitLeft -= waited
	c.state = dialling
	c.loop.wheel.unset(&c.timer)
	return waited
}

// admitted is told of a slot. It may come too late: the record may be another connection's by then.
func (c *conn) admitted(l *Limit, t *ticket) {
	if c.ticket != t {
		l.give()
		return
	}
	defer c.contain()
	c.ticket, c.limit = nil, l
	c.waitIsOver()
	c.find()
}

// full is for a search that finds all backends which are left to try at their limits, or others waiting for them. It
// returns false if there is none left to try.
func (c *conn) full() bool {
	freed := c.listener.balancer.Freed(c.search.tried)
	if freed == nil {
		return false
	}
	if c.limit == nil {
		select {
		case <-freed:
			c.wake(tick) // it is a moment ago that there was none
			return true
		default:
		}
		c.giveUp(errLimited)
		return true
	}
	t, timeout := c.limit.waitForBackend(c)
	c.wait(t, timeout)
	return true
}

// called is told that there may be room at a backend.
func (c *conn) called(t *ticket) {
	if c.ticket != t {
		return
	}
	defer c.contain()
	s := c.search
	backend, ok := c.choose()
	if !ok && c.listener.balancer.Freed(s.tried) != nil {
		return // others were quicker
	}
	c.stopWaiting()
	s.deadline += c.waitIsOver()
	switch {
	case !ok:
		c.nextRound()
	case !c.dialTo(backend):
		c.pick()
	}
}

// stopWaiting gives the place in the queue up, if there is one.
func (c *conn) stopWaiting() {
	if c.ticket != nil {
		c.settings.Limit.leave(c.ticket)
		c.ticket = nil
	}
}
