package relay

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

var (
	errNoBackend = errors.New("no backend")
	errExhausted = errors.New("no backend answered")
	errAbandoned = errors.New("the client left")
)

// find begins the search.
func (c *conn) find() {
	c.search = c.loop.newSearch()
	c.search.deadline, c.search.patience = c.loop.now+c.settings.DialTimeout, c.listener.relay.cfg.TryTimeout
	c.search.free = c.listener.balancer.Working()
	c.pick()
}

// pick dials one backend after the other until one may answer later or the search is over.
func (c *conn) pick() {
	for c.state == dialling {
		if !c.mayRetry() {
			c.giveUp(errExhausted)
			return
		}
		var backend netip.AddrPort
		ok := false
		if c.limit == nil || !c.limit.waitsForBackend(c.listener.balancer) {
			backend, ok = c.choose()
		}
		if !ok {
			if !c.full() {
				c.nextRound()
			}
			return
		}
		if c.dialTo(backend) {
			return
		}
	}
}

// choose asks the balancer for a backend that has not been tried in this round.
func (c *conn) choose() (netip.AddrPort, bool) {
	if b := c.listener.balancer; b.WantsDestination() {
		return b.PickFor(c.clientIP, c.destination().Addr(), c.search.tried)
	}
	return c.listener.balancer.Pick(c.clientIP, c.search.tried)
}

// mayRetry reports whether there may be a dial after the first. The permission lasts until that dial is made.
func (c *conn) mayRetry() bool {
	s, most := c.search, c.settings.MaxRetries
	switch {
	case s.dials == 0 || s.allowed:
		return true
	case most < 0 || most > 0 && s.dials > uint64(most):
		return false
	case s.free:
		return true
	}
	s.allowed = c.listener.balancer.Retry()
	return s.allowed
}

// dialTo dials a backend that has just been picked, see dial.
func (c *conn) dialTo(backend netip.AddrPort) bool {
	s := c.search
	s.begin(backend)
	if s.dials > 1 {
		s.second = true
		c.stats.retries.Add(1)
	}
	s.asked, c.to, s.retry = true, backend, backoff{}
	return c.dial()
}

// nextRound pauses, as a dial may also fail at once, for want of a local port, and then asks the silent backends again, if
// there are any.
func (c *conn) nextRound() {
	s := c.search
	if len(s.tried) == len(s.refused) || c.over() {
		c.giveUp(s.verdict())
		return
	}
	s.tried = append(s.tried[:0], s.refused...)
	s.patience = min(2*s.patience, c.settings.DialTimeout)
	c.wake(s.pause.next())
}

// dial begins an attempt at c.to. It returns false when that has failed at once, and another backend may be picked.
func (c *conn) dial() bool {
	s := c.search
	s.began, s.short = c.loop.now, false
	fd, err := dialTCP(c.to, c.listener.relay.cfg.Mark)
	if err != nil {
		return c.failed(err)
	}
	c.backend.fd = fd
	if err := c.watch(&c.backend); err != nil {
		c.backend.close()
		return c.failed(err)
	}
	s.delay = c.hedgeDelay(c.to)
	c.wake(min(s.delay, s.patience, firstLook))
	return true
}

// dialTCP begins to connect a socket.
func dialTCP(backend netip.AddrPort, mark uint32) (int, error) {
	fd, errno := streamSocket(backend.Addr())
	if errno != 0 {
		return -1, os.NewSyscallError("socket", errno)
	}
	if mark != 0 {
		if err := setMark(fd, mark); err != nil {
			closeRaw(fd)
			return -1, os.NewSyscallError("setting the mark", err)
		}
	}
	if err := connectTo(fd, backend); err != nil && err != unix.EINPROGRESS {
		closeRaw(fd)
		return -1, os.NewSyscallError("connect", err)
	}
	return fd, nil
}

// dialError is what an event of a socket that is being connected says: nil that it is connected.
func dialError(fd int, events uint32) error {
	if events&(unix.EPOLLERR|unix.EPOLLHUP) == 0 {
		return nil
	}
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil || errno == 0 {
		errno = int(unix.ECONNABORTED)
	}
	return os.NewSyscallError("connect", unix.Errno(errno))
}

// hadConnected tells a reset after the handshake from one in answer to the SYN (tcp_reset).
func hadConnected(err error) bool {
	return errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// answered is told of the socket that is being connected.
func (c *conn) answered(events uint32) {
	switch err := dialError(c.backend.fd, events); {
	case err == nil:
		if events&unix.EPOLLOUT != 0 {
			c.connected()
		}
	case hadConnected(err):
		c.backend.gone = true
		c.connected()
	default:
		c.tryOther(err)
	}
}

// searchOn is the timer of a search: an attempt has taken long, or a pause is over.
func (c *conn) searchOn() {
	switch s := c.search; {
	case c.backend.fd >= 0:
		c.overdue()
	case s.short:
		if c.over() {
			c.tryOther(errNoFDs)
		} else if !c.dial() {
			c.pick()
		}
	case c.over():
		c.giveUp(s.verdict())
	default:
		c.pick()
	}
}

// tryOther ends an attempt.
func (c *conn) tryOther(err error) {
	c.backend.close()
	c.backend = end{conn: c, fd: -1, slot: -1}
	switch {
	case c.failed(err):
	case c.state == dialling && c.search.rival.flying:
		c.promote()
	default:
		c.pick()
	}
}

// failed reports an attempt. It returns false if another backend may be picked. When the proxy itself is out of
// descriptors, ports or memory, that says nothing about the backend: the dial is repeated until there are some or the
// budget is spent.
func (c *conn) failed(err error) (waiting bool) {
	s, r := c.search, c.listener.relay
	lasted := c.loop.now - s.began
	switch {
	case c.over() && (isShortage(err) || isSilence(err)):
		err = c.silence(lasted)
	case errors.Is(err, unix.EADDRNOTAVAIL): // no local port is left towards this backend; towards others there may be
		r.complain(err, "no local port left for a backend, trying others")
		err = context.Canceled
	case isShortage(err):
		r.complain(err, "cannot dial backends, retrying")
		s.short = true
		c.wake(s.retry.next())
		return true
	}
	if !isSilence(err) {
		s.refused = append(s.refused, c.to)
	}
	s.asked = false
	c.logDial(c.to, err)
	c.listener.balancer.Report(c.clientIP, c.to, lasted, err)
	switch {
	case c.over():
		c.giveUp(s.verdict())
	case !c.in.pending() && peerGone(c.client.fd):
		c.giveUp(errAbandoned)
	}
	return false
}

// silence is what to say of a backend that has been silent for so long, when it is given up for reasons of our own.
func (c *conn) silence(lasted time.Duration) error {
	if c.search.short || lasted < c.listener.relay.cfg.TryTimeout {
		return context.Canceled
	}
	return os.ErrDeadlineExceeded
}

// clientLeft ends the search of a client that has reset its connection, unless it has sent something before.
func (c *conn) clientLeft() {
	if !c.in.pending() && unread(c.client.fd) == 0 {
		c.giveUp(errAbandoned)
	}
}

// connected takes the backend that has answered. The search is kept until a byte moves: the backend may yet leave.
func (c *conn) connected() {
	s := c.search
	if s.second && !c.retried {
		c.retried = true
		c.stats.retried.Add(1)
	}
	if !c.reached {
		c.reached = true
		c.stats.connected.Add(1)
	}
	c.state, c.held, c.lasting = relaying, true, false
	c.started, c.moved, c.rested = c.loop.now, c.loop.now, true
	c.client.room = true
	s.asked = false
	c.listener.balancer.Report(c.clientIP, c.to, c.loop.now-s.began, nil)
	if s.rival.flying {
		c.loseRival()
	}
	c.loop.wheel.set(&c.timer, c.loop.now+lastingFor(&c.listener.relay.cfg))
	if c.settings.ProxyProtocol != 0 && !c.introduce() {
		return
	}
	if c.born(); c.state == relaying {
		c.work()
	}
}

// giveUp ends the connection before it has reached a backend that stayed. A client whose last backend has left sees that
// backend's end, any other a reset.
func (c *conn) giveUp(err error) {
	switch {
	case c.reached:
	case errors.Is(err, errAbandoned):
		c.stats.abandoned.Add(1)
	case errors.Is(err, errLimited):
		c.stats.limited.Add(1)
	case errors.Is(err, errQueueTimeout):
		c.stats.limited.Add(1)
		c.stats.queueTimeouts.Add(1)
	case errors.Is(err, errNoBackend):
		c.stats.noBackend.Add(1)
	default:
		c.stats.failed.Add(1)
	}
	var given [2]struct {
		to     netip.AddrPort
		lasted time.Duration
		why    error
	}
	if s := c.search; s != nil {
		if s.asked {
			given[0].to, given[0].lasted = c.to, c.loop.now-s.began
			given[0].why = c.silence(given[0].lasted)
		}
		if s.rival.flying {
			given[1].to, given[1].lasted = s.rival.to, c.loop.now-s.rival.began
			given[1].why = c.silence(given[1].lasted)
			s.rival.end.close()
		}
		if s.left == errClosedEarly {
			c.client.close()
		}
		c.loop.endSearch(c)
	}
	c.abort()
	if c.listener.relay.cfg.Log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		c.listener.log().WithField("client", c.clientIP).WithError(err).Debug("connection not relayed")
	}
	for _, g := range given {
		if g.why != nil {
			c.listener.balancer.Report(c.clientIP, g.to, g.lasted, g.why)
		}
	}
}

// wake sets the timer of the search, within its budget.
func (c *conn) wake(after time.Duration) {
	c.loop.wheel.set(&c.timer, min(c.loop.now+after, c.search.deadline))
}

// over reports that the budget is spent.
func (c *conn) over() bool { return c.loop.now >= c.search.deadline }

func (c *conn) logDial(backend netip.AddrPort, err error) {
	if !c.listener.relay.cfg.Log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		return
	}
	c.listener.log().WithFields(logrus.Fields{"client": c.clientIP, "backend": backend}).WithError(err).Debug("backend not reached")
}
