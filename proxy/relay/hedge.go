package relay

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A backend that is silent for longer than its dials usually take gets a rival: another one is dialled beside it, and the
// first to answer has the connection. Two sockets are out at most. When both have been silent for the search's patience,
// the older one makes room for the next backend; sooner, when the rival is late as well and the Balancer knows of others.
//
// A rival costs a descriptor more than a connection is charged for. There is one only where descriptors are left over, so
// that it never takes the place of a client.

// firstLook is when the delay is looked up for the second time: it is long as long as it is not known, and others may have
// been answered meanwhile. After that, each time that the dial has lasted twice as long.
const firstLook = 10 * time.Millisecond

// rival is the second backend that is being dialled.
type rival struct {
	end    end
	to     netip.AddrPort
	began  time.Duration
	flying bool
}

// hedgeDelay is how long a backend may be silent before it gets a rival.
func (c *conn) hedgeDelay(backend netip.AddrPort) time.Duration {
	switch d := c.settings.Hedge; {
	case d < 0:
		return math.MaxInt64
	case d > 0:
		return d
	}
	return c.listener.balancer.HedgeDelay(backend)
}

// overdue is told that what is being dialled may have been silent for too long. If another dial is not allowed, it is all
// that there is, with its rival if it has one, and has the rest of the budget.
func (c *conn) overdue() {
	s := c.search
	lasted := c.loop.now - s.began
	if lasted < s.delay { // what is usual may have become known meanwhile
		s.delay = min(s.delay, c.hedgeDelay(c.to))
	}
	switch {
	case dialOver(c.backend.fd) || s.rival.flying && dialOver(s.rival.end.fd):
		// The loop is late, not the backend: the event is on its way. It comes between two turns, so the timer must not be due
		// in this one, whatever is left of the budget.
		c.loop.wheel.set(&c.timer, c.loop.now+tick)
	case c.over():
		c.tryOther(os.ErrDeadlineExceeded)
	case s.rival.flying && c.loop.now-s.rival.began < s.patience:
		c.bothSilent(c.loop.now - s.rival.began)
	case s.rival.flying && !c.mayRetry():
		c.waitOn(c.to, s.rival.to)
	case s.rival.flying:
		c.tryOther(os.ErrDeadlineExceeded)
	case lasted < min(s.delay, s.patience):
		c.wake(min(s.delay-lasted, s.patience-lasted, max(lasted, firstLook)))
	default:
		c.late(lasted)
	}
}

// late is told that what is being dialled, alone, has been silent for too long.
func (c *conn) late(lasted time.Duration) {
	s := c.search
	if !c.mayRetry() {
		c.waitOn(c.to)
		return
	}
	c.listener.balancer.Overdue(c.to, s.patience-lasted, s.tried)
	switch {
	case c.settings.Hedge >= 0 && c.beside():
	case c.state != dialling:
	case lasted < s.patience:
		c.wake(s.patience - lasted)
	default:
		c.tryOther(os.ErrDeadlineExceeded)
	}
}

// waitOn goes on with dials whose place no other may take. The Balancer is told again as long as they last, so that others
// are spared.
func (c *conn) waitOn(backends ...netip.AddrPort) {
	s := c.search
	for _, backend := range backends {
		c.listener.balancer.Overdue(backend, s.patience+tick, s.tried)
	}
	c.wake(s.patience)
}

// bothSilent is told how long the rival has been. If others are known that are not late, the older one makes room. It is
// waited for as an orphan all the same.
func (c *conn) bothSilent(lasted time.Duration) {
	s := c.search
	if delay := c.hedgeDelay(s.rival.to); lasted < delay {
		c.wake(min(delay, s.patience) - lasted)
		return
	}
	first := rival{end: c.backend, to: c.to, began: s.began}
	if c.listener.balancer.Overdue(s.rival.to, s.patience-lasted, s.tried) && c.mayRetry() && c.orphan(&first) {
		c.promote()
		return
	}
	c.wake(s.patience - lasted)
}

// beside dials a rival and returns false if there is none to be had.
func (c *conn) beside() bool {
	s, r, b := c.search, c.listener.relay, c.listener.balancer
	for c.mayRetry() {
		if c.limit != nil && c.limit.waitsForBackend(b) {
			return false
		}
		if s.charged = s.charged || r.fds.TryAcquire(1); !s.charged {
			return false
		}
		backend, ok := c.choose()
		if !ok {
			return false
		}
		s.begin(backend)
		c.stats.hedges.Add(1)
		fd, err := dialTCP(backend, r.cfg.Mark)
		if err == nil {
			s.rival = rival{end: end{conn: c, fd: fd, slot: -1}, to: backend, began: c.loop.now, flying: true}
			if err = c.watch(&s.rival.end); err == nil {
				c.wake(min(c.hedgeDelay(backend), s.patience))
				return true
			}
			s.rival.end.close()
			s.rival.flying = false
		}
		short := isShortage(err)
		if short || errors.Is(err, unix.EADDRNOTAVAIL) {
			err = context.Canceled // ours, not the backend's
		} else if !isSilence(err) {
			s.refused = append(s.refused, backend)
		}
		c.logDial(backend, err)
		b.Report(c.clientIP, backend, 0, err)
		if short {
			return false
		}
	}
	return false
}

// rivalAnswered is told of the rival's socket. If it has failed, the next backend takes its place.
func (c *conn) rivalAnswered(events uint32) {
	s := c.search
	err := dialError(s.rival.end.fd, events)
	if err == nil && events&unix.EPOLLOUT == 0 {
		return
	}
	if err == nil || hadConnected(err) {
		c.second()
		if err != nil {
			c.backend.gone = true
		}
		c.connected()
		return
	}
	s.rival.end.close()
	s.rival.flying = false
	if !isSilence(err) {
		s.refused = append(s.refused, s.rival.to)
	}
	c.logDial(s.rival.to, err)
	c.listener.balancer.Report(c.clientIP, s.rival.to, c.loop.now-s.rival.began, err)
	c.overdue()
}

// second has the rival change places with the first, whose connection it takes.
func (c *conn) second() {
	s := c.search
	first := rival{end: c.backend, to: c.to, began: s.began, flying: true}
	c.promote()
	s.rival, s.second = first, true
	c.loop.slots[s.rival.end.slot].source = &s.rival.end
}

// promote has the rival take the place of the first.
func (c *conn) promote() {
	s := c.search
	c.backend, c.to, s.began, s.asked = s.rival.end, s.rival.to, s.rival.began, true
	c.loop.slots[c.backend.slot].source = &c.backend
	s.rival.flying = false
	s.second = true
	s.delay = 0 // whoever comes next has waited for long enough
	c.wake(0)
}
