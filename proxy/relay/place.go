package relay

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Which loop a connection belongs to: that of its listener, unless that loop is overloaded. Short connections are cheapest
// there, since another loop would have to be woken for each: giving them away whenever a loop had not rested for a
// millisecond took an eighth more processor time per connection (measured, on a machine where others wanted the
// processors too). An overloaded loop gives new connections to one that rests, and from time to time an established one,
// as those that are busy for long may all have come in while it had nothing to do.
//
// Not done: a socket per loop and listener (SO_REUSEPORT), which costs descriptors and memory for each of 30,000 listeners
// and loses what is in one queue when it is closed; one socket in every loop's epoll set (EPOLLEXCLUSIVE), since then
// loops wake for each other's connections.

// load tells a loop that has more to do than it can from one that rests at times or does not get a processor.
type load struct {
	at     time.Duration // when the present period began
	cpu    time.Duration // of the thread, then
	heavy  bool          // the last period was spent on the processor
	gaveAt time.Duration // when it last gave an established connection away
}

// overloaded looks at periods of relay.restless: if the thread, which is the loop's own, was running for nearly all of one,
// another processor would help. Where threads compete for processors it never is, and none would.
func (lp *tcpLoop) overloaded() bool {
	l, period := &lp.load, lp.relay.restless
	if period == 0 {
		return true
	}
	if past := lp.now - l.at; past >= period {
		cpu := threadTime()
		l.heavy = past < 2*period && cpu-l.cpu > past*31/32 // what is longer ago may be one rest
		l.at, l.cpu = lp.now, cpu
	}
	return l.heavy
}

// threadTime is the processor time that this thread has used.
func threadTime() time.Duration {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// relief returns a loop that rests while lp is overloaded, or nil. The caller has to give it something to do.
func (lp *tcpLoop) relief() *tcpLoop {
	if lp.paused || !lp.overloaded() {
		return nil
	}
	loops := lp.peers
	for i := 1; i < len(loops); i++ {
		if o := loops[(lp.index+i)%len(loops)]; o.resting.Load() && o.resting.CompareAndSwap(true, false) {
			return o
		}
	}
	return nil
}

// place begins a connection in the loop that is best for it.
func (lp *tcpLoop) place(l *Listener, fd int, client netip.Addr, waited bool) {
	lp.relay.live.Add(1)
	if o := lp.relief(); o != nil && o.do(func() { o.begin(l, fd, client, waited) }) {
		return
	}
	lp.begin(l, fd, client, waited)
}

// giveAway moves an established connection to a loop that rests, if there is one and it is time, and returns true if it
// has.
func (c *conn) giveAway() bool {
	lp := c.loop
	if c.state != relaying || c.queued || lp.now-lp.load.gaveAt < lp.relay.restless {
		return false
	}
	o := lp.relief()
	if o == nil {
		return false
	}
	lp.load.gaveAt = lp.now
	lp.wheel.unset(&c.timer)
	for _, e := range []*end{&c.client, &c.backend} {
		unix.EpollCtl(lp.epoll, unix.EPOLL_CTL_DEL, e.fd, nil)
		lp.release(e.slot)
		e.slot = -1
	}
	lp.pipes.used -= c.pipes()
	lp.live--
	if !o.do(func() { o.adopt(c) }) {
		lp.adopt(c)
	}
	return true
}

// adopt takes an established connection in, which is served before it may be given away again. What is ready makes an event
// now, as it does whenever a socket is added.
func (lp *tcpLoop) adopt(c *conn) {
	c.loop, c.arrived = lp, true
	c.countIn(c.listener.countersOf(lp))
	lp.pipes.used += c.pipes()
	lp.live++
	defer c.contain()
	c.heed(c.listener.retained.Load()) // which it may have missed on the way
	for _, e := range []*end{&c.client, &c.backend} {
		if err := c.watch(e); err != nil {
			lp.relay.complain(err, "cannot wait for a connection's bytes, cutting it")
			c.abort()
			return
		}
	}
	lp.wheel.set(&c.timer, lp.now) // it knows itself what for
}
