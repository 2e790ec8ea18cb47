package relay

import (
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/sirupsen/logrus"
)

// state is where a connection is in its life, see the package comment.
type state uint8

const (
	dialling state = iota
	waiting        // for a limit's sake
	relaying
	resetting // one peer has reset: what it sent before is on its way to the other
	ended
)

// lastingAfter is when a connection is old enough for options that cost a short one more than they are worth.
const lastingAfter = time.Second

// conn is one client connection and, once dialled, its backend connection. A loop owns it.
type conn struct {
	loop     *tcpLoop
	listener *Listener
	settings *Settings // those of the listener when it began
	stats    *counters // the loop's share of the listener's
	clientIP netip.Addr
	to       netip.AddrPort // the backend, once connected or while it is dialled
	client   end
	backend  end
	in, out  half    // client to backend and back
	search   *search // while dialling, and then until a byte moves: see early.go
	reset    *half   // while resetting: the direction that goes on
	timer    timer
	limit    *Limit        // of which it has a slot; nil: none
	ticket   *ticket       // while waiting
	started  time.Duration // when it was accepted, and then when it was connected
	moved    time.Duration // when bytes last moved
	left     int           // bytes unacknowledged, as last seen
	pause    time.Duration // between looks at left, while resetting

	waitSince, waitLeft time.Duration // of the queue: when the present wait began, and how long it may last
	// When it is to end, and since when its backend is gone, see life.go. 0: not known.
	ageAt, leftAt, graceEnd time.Duration
	retained                *retained // as heeded last

	state      state
	waited     bool // in a queue
	reached    bool // counted as connected
	retried    bool // and as retried
	held       bool // the balancer is to be told of the end
	lasting    bool // lastingAfter has passed
	halfClosed bool // one direction has ended and the other goes on under HalfCloseTimeout
	queued     bool // in loop.more
	arrived    bool // from another loop, and not served since
	rested     bool // the last byte was the backend's, or there was none yet
	broken     bool // either peer reset its connection or vanished
	expired    bool // HalfCloseTimeout ended the connection
}

// begin makes a connection of an accepted socket. The two descriptors are charged for already. A client that has waited may
// be gone.
func (lp *tcpLoop) begin(l *Listener, fd int, client netip.Addr, waited bool) {
	c := lp.record()
	c.listener, c.clientIP, c.settings = l, client, l.settings.Load()
	c.countIn(l.countersOf(lp))
	c.client.fd, c.client.noDelay = fd, true // inherited
	c.started = lp.now
	c.stats.active.Add(1)
	lp.live++
	defer c.contain()
	if waited && peerGone(fd) {
		c.giveUp(errAbandoned)
		return
	}
	c.enter()
	if c.state == ended {
		return
	}
	if err := c.watch(&c.client); err != nil {
		c.giveUp(err)
	}
}

// record returns an unused conn.
func (lp *tcpLoop) record() *conn {
	var c *conn
	if n := len(lp.spare); n > 0 {
		c, lp.spare = lp.spare[n-1], lp.spare[:n-1]
	} else {
		c = new(conn)
	}
	*c = conn{loop: lp}
	c.client, c.backend = end{conn: c, fd: -1, slot: -1}, end{conn: c, fd: -1, slot: -1}
	c.in, c.out = half{conn: c, src: &c.client, dst: &c.backend}, half{conn: c, src: &c.backend, dst: &c.client}
	c.timer.owner = c
	return c
}

// countIn has what happens to c from now on counted in n.
func (c *conn) countIn(n *counters) {
	c.stats, c.in.count, c.out.count = n, &n.bytesIn, &n.bytesOut
}

// resume goes on with bytes that were left for the others' sake.
func (c *conn) resume() {
	defer c.contain()
	c.queued = false
	c.work()
}

// again has c resumed in this turn, after the others' events.
func (c *conn) again() {
	if !c.queued {
		c.queued = true
		c.loop.more = append(c.loop.more, c)
	}
}

// work moves what can be moved.
func (c *conn) work() {
	switch c.state {
	case relaying:
		c.out.move() // first, since a backend that leaves early does not get to see the client's bytes
		if c.state == relaying {
			c.in.move()
		}
		switch { // move may have ended c
		case c.state != relaying:
		case c.client.gone:
			c.passReset(&c.in)
		case c.backend.gone:
			if !c.leave(errResetEarly) {
				c.passReset(&c.out)
			}
		}
	case resetting:
		c.lookAgain()
	}
}

// alarm is the connection's timer.
func (c *conn) alarm() {
	defer c.contain()
	switch c.state {
	case dialling:
		c.searchOn()
	case waiting:
		c.giveUp(errQueueTimeout)
	case relaying:
		c.last()
	case resetting:
		c.lookAgain()
	}
}

// last sees to a connection that has lasted for a while. Then its timer runs only while it is half-closed.
func (c *conn) last() {
	cfg := &c.listener.relay.cfg
	if !c.lasting {
		if due := c.started + lastingFor(cfg); c.loop.now < due {
			c.loop.wheel.set(&c.timer, due)
		} else {
			c.lasting = true
			setTimeouts(c.backend.fd, cfg.KeepAlive, cfg.UserTimeout)
		}
	}
	if c.search != nil {
		if c.over() {
			c.settle()
		} else {
			c.wakeBy(c.search.deadline)
		}
	}
	c.live()
	if c.halfClosed && c.state == relaying {
		c.linger()
	}
}

// lastingFor is when the backend's socket gets the options that the client's has inherited.
func lastingFor(cfg *Config) time.Duration { return min(lastingAfter, cfg.KeepAlive) }

// cut ends the connection from outside, by a reset on both sides.
func (c *conn) cut() {
	if c.state == dialling || c.state == waiting {
		c.giveUp(errExhausted)
		return
	}
	c.abort()
}

func (c *conn) cutSafely() {
	defer c.contain()
	c.cut()
}

// abort ends the connection by a reset on both sides.
func (c *conn) abort() {
	c.client.abort()
	c.backend.abort()
	c.end()
}

// end closes what is open and gives back what begin took.
func (c *conn) end() {
	if c.state == ended {
		return
	}
	c.state = ended
	lp := c.loop
	lp.wheel.unset(&c.timer)
	c.stopWaiting()
	c.settle()
	c.in.drop()
	c.out.drop()
	c.backend.close()
	c.client.close()
	c.stats.active.Add(-1)
	lp.live--
	lp.dead = append(lp.dead, c)
	c.listener.relay.live.Add(-1)
	c.listener.relay.fds.Release(fdsPerConnection)
	if c.limit != nil {
		c.limit.give()
	}
	if c.held { // last: it is not our code
		c.logEnd()
		c.listener.balancer.Release(c.to)
	}
}

// contain, when deferred, ends the connection if it panics. One connection's fault must not take the other connections of
// this node with it.
func (c *conn) contain() {
	p := recover()
	if p == nil {
		return
	}
	c.listener.log().WithFields(logrus.Fields{"panic": p, "stack": string(debug.Stack())}).Error("relaying a connection panicked, please report it")
	defer func() {
		if p := recover(); p != nil { // again: leave it
			c.listener.log().WithField("panic", p).Error("ending that connection panicked as well")
		}
	}()
	c.cut()
}

func (c *conn) logEnd() {
	if c.broken {
		c.stats.resets.Add(1)
	}
	if c.expired {
		c.stats.halfClosed.Add(1)
	}
	if !c.listener.relay.cfg.Log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		return
	}
	c.listener.log().WithFields(logrus.Fields{
		"client": c.clientIP, "backend": c.to, "took": (c.loop.now - c.started).String(), "reset": c.broken, "expired": c.expired,
	}).Debug("connection ended")
}
