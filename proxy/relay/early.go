package relay

import "errors"

// A backend that closes or resets a connection before a byte has gone either way has done nothing with it: a process that
// ends resets what is in its accept queue, and closes what it has accepted and not looked at. So that counts as a failed
// dial, and the client goes on to another backend. It does as long as the dial budget lasts: later, closing an idle
// connection is a server's right.
//
// Once the client's FIN has been passed on, an end is the answer to it: probes connect and close. Where closing at once is
// what the Service does, every backend is tried once, and the client sees the end of the last. That one is not let go
// of: it may have closed one direction only, and read on.

var (
	errClosedEarly = errors.New("closed before a byte was exchanged")
	errResetEarly  = errors.New("reset before a byte was exchanged")
)

// mayLeave reports that no byte has moved yet, and the budget lasts.
func (c *conn) mayLeave() bool { return c.state == relaying && c.search != nil && !c.over() }

// settle ends the search for good.
func (c *conn) settle() {
	if c.search != nil {
		c.loop.endSearch(c)
	}
}

// leave takes the connection on to another backend. It returns false if this one's end is to be passed on.
func (c *conn) leave(how error) bool {
	if !c.mayLeave() || !c.in.pending() && peerGone(c.client.fd) {
		return false
	}
	s, b, from := c.search, c.listener.balancer, c.to
	c.stats.earlyCloses.Add(1)
	c.logDial(from, how)
	s.refused, s.left = append(s.refused, from), how
	b.Fail(c.clientIP, from, how)
	if !c.mayRetry() {
		c.settle()
		return false
	}
	next, ok := c.choose()
	if !ok && len(s.tried) == len(s.refused) && b.Freed(s.tried) == nil {
		c.settle()
		return false
	}
	c.state, c.held, s.asked, c.to = dialling, false, ok, next
	b.Release(from)
	c.backend.close()
	c.backend = end{conn: c, fd: -1, slot: -1}
	c.out = half{conn: c, src: &c.backend, dst: &c.client, count: c.out.count}
	switch {
	case !ok && c.full():
	case !ok:
		c.nextRound()
	case !c.dialTo(next):
		c.pick()
	}
	return true
}
