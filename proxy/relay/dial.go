package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// search is one client connection's way to a backend.
//
// It goes in rounds: each round tries every backend once, in the balancer's order. Backends that answered with a refusal
// are out for good; silent ones are asked again in the next round with twice the patience, since silence may have been
// a lost SYN, or the backend slower than the first round allowed for.
type search struct {
	deadline time.Duration // when the dial budget is spent
	began    time.Duration // of the present attempt
	patience time.Duration
	refused  []netip.AddrPort
	tried    []netip.AddrPort // in this round, the refused ones included
	dials    uint64
	asked    bool    // a backend was picked and not reported yet
	left     error   // how the last backend has ended the connection before a byte moved; nil: none has
	short    bool    // the timer is for another try at the same backend, for want of descriptors
	retry    backoff // of those tries
	pause    backoff // between rounds
}

var (
	errNoBackend = errors.New("no backend")
	errExhausted = errors.New("no backend answered")
	errAbandoned = errors.New("the client left")
)

// find begins the search.
func (c *conn) find() {
	cfg := &c.listener.relay.cfg
	c.search = c.loop.newSearch()
	c.search.deadline, c.search.patience = c.loop.now+cfg.DialTimeout, cfg.TryTimeout
	c.pick()
}

// pick dials one backend after the other until one may answer later or the search is over.
func (c *conn) pick() {
	for c.state == dialling {
		s := c.search
		backend, ok := c.listener.balancer.Pick(c.clientIP, s.tried)
		if !ok {
			c.nextRound()
			return
		}
		if c.dialTo(backend) {
			return
		}
	}
}

// dialTo dials a backend that has just been picked, see dial.
func (c *conn) dialTo(backend netip.AddrPort) bool {
	s := c.search
	if s.dials++; s.dials > 1 {
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
	s.patience *= 2
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
	c.wake(s.patience)
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

// answered is told of the socket that is being connected.
func (c *conn) answered(events uint32) {
	switch {
	case events&(unix.EPOLLERR|unix.EPOLLHUP) != 0:
		errno, err := unix.GetsockoptInt(c.backend.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil || errno == 0:
			c.tryOther(os.NewSyscallError("connect", unix.ECONNRESET))
		case errno == int(unix.ECONNRESET) || errno == int(unix.EPIPE): // it had been connected (tcp_reset)
			c.backend.gone = true
			c.connected()
		default:
			c.tryOther(os.NewSyscallError("connect", unix.Errno(errno)))
		}
	case events&unix.EPOLLOUT != 0:
		c.connected()
	}
}

// searchOn is the timer of a search: an attempt has taken too long, or a pause is over.
func (c *conn) searchOn() {
	switch s := c.search; {
	case c.backend.fd >= 0:
		c.tryOther(os.ErrDeadlineExceeded)
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
	if !c.failed(err) {
		c.pick()
	}
}

// failed reports an attempt. It returns false if another backend may be picked. When the proxy itself is out of
// descriptors, ports or memory, that says nothing about the backend: the dial is repeated until there are some or the
// budget is spent.
func (c *conn) failed(err error) (waiting bool) {
	s, r := c.search, c.listener.relay
	switch {
	case c.over() && (isShortage(err) || isSilence(err) && c.loop.now-s.began < r.cfg.TryTimeout):
		err = context.Canceled // given up for reasons of our own: says nothing about the backend
	case errors.Is(err, unix.EADDRNOTAVAIL): // no local port is left towards this backend; towards others there may be
		r.complain(err, "no local port left for a backend, trying others")
		err = context.Canceled
	case isShortage(err):
		r.complain(err, "cannot dial backends, retrying")
		s.short = true
		c.wake(s.retry.next())
		return true
	}
	c.report(err)
	c.logDial(err)
	s.tried = append(s.tried, c.to)
	if !isSilence(err) {
		s.refused = append(s.refused, c.to)
	}
	switch {
	case c.over():
		c.giveUp(s.verdict())
	case !c.in.pending() && peerGone(c.client.fd):
		c.giveUp(errAbandoned)
	}
	return false
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
	if s.dials > 1 && !c.retried {
		c.retried = true
		c.stats.retried.Add(1)
	}
	if !c.reached {
		c.reached = true
		c.stats.connected.Add(1)
	}
	c.state, c.held, c.lasting = relaying, true, false
	c.started = c.loop.now
	c.client.room = true
	s.asked = false
	c.listener.balancer.Report(c.clientIP, c.to, c.loop.now-s.began, nil)
	c.loop.wheel.set(&c.timer, c.loop.now+lastingFor(&c.listener.relay.cfg))
	c.work()
}

// giveUp ends the connection before it has reached a backend that stayed. A client whose last backend has left sees that
// backend's end, any other a reset.
func (c *conn) giveUp(err error) {
	s := c.search
	switch {
	case c.reached:
	case errors.Is(err, errAbandoned):
		c.stats.abandoned.Add(1)
	case errors.Is(err, errNoBackend):
		c.stats.noBackend.Add(1)
	default:
		c.stats.failed.Add(1)
	}
	asked := false
	if s != nil {
		asked = s.asked
		if s.left == errClosedEarly {
			c.client.close()
		}
		c.loop.endSearch(c)
	}
	c.abort()
	c.listener.log.WithField("client", c.clientIP).WithError(err).Debug("connection not relayed")
	if asked {
		c.listener.balancer.Report(c.clientIP, c.to, 0, context.Canceled)
	}
}

// verdict is why a search that is over has found nothing.
func (s *search) verdict() error {
	if s.dials == 0 {
		return errNoBackend
	}
	return errExhausted
}

// report tells the balancer how the attempt has ended, once.
func (c *conn) report(err error) {
	c.search.asked = false
	c.listener.balancer.Report(c.clientIP, c.to, c.loop.now-c.search.began, err)
}

// wake sets the timer of the search, within its budget.
func (c *conn) wake(after time.Duration) {
	c.loop.wheel.set(&c.timer, min(c.loop.now+after, c.search.deadline))
}

// over reports that the budget is spent.
func (c *conn) over() bool { return c.loop.now >= c.search.deadline }

func (lp *tcpLoop) newSearch() *search {
	if n := len(lp.searches); n > 0 {
		s := lp.searches[n-1]
		lp.searches = lp.searches[:n-1]
		return s
	}
	return new(search)
}

func (lp *tcpLoop) endSearch(c *conn) {
	const most = 256
	s := c.search
	c.search = nil
	*s = search{tried: s.tried[:0], refused: s.refused[:0]}
	if len(lp.searches) < most {
		lp.searches = append(lp.searches, s)
	}
}

func (c *conn) logDial(err error) {
	if !c.listener.log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		return
	}
	c.listener.log.WithFields(logrus.Fields{"client": c.clientIP, "backend": c.to}).WithError(err).Debug("backend not reached")
}

// isSilence reports that the backend has not answered, rather than refused.
func isSilence(err error) bool { return errors.Is(err, context.Canceled) || isTimeout(err) }

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
