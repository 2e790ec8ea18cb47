package relay

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// Which loop a connection belongs to: that of its listener, for as long as that loop finds time to rest. Short connections
// are cheapest there, since another loop would have to be woken for each. A loop without a rest gives new connections to
// one that rests, and from time to time an established one, as those that are busy for long may all have come in while it
// had nothing to do.
//
// Not done: a socket per loop and listener (SO_REUSEPORT), which costs descriptors and memory for each of 30,000 listeners
// and loses what is in one queue when it is closed; one socket in every loop's epoll set, since EPOLLEXCLUSIVE wakes all of
// them if they wait in the runtime's poller rather than in epoll_wait(2) (ep_poll_callback).

// giveEvery is how many restless periods lie between two established connections given away.
const giveEvery = 10

// relief returns a loop that rests while lp does not find to it, or nil. The caller has to give it something to do.
func (lp *tcpLoop) relief() *tcpLoop {
	if lp.draining || lp.now-lp.busySince < lp.relay.restless {
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
	if o := lp.relief(); o != nil && o.do(func() { o.begin(l, fd, client, waited) }) {
		return
	}
	lp.begin(l, fd, client, waited)
}

// giveAway moves an established connection to a loop that rests, if there is one and it is time, and returns true if it
// has.
func (c *conn) giveAway() bool {
	lp := c.loop
	if c.state != relaying || c.queued || lp.now-lp.gaveAt < giveEvery*lp.relay.restless {
		return false
	}
	o := lp.relief()
	if o == nil {
		return false
	}
	lp.gaveAt = lp.now
	lp.wheel.unset(&c.timer)
	for _, e := range []*end{&c.client, &c.backend} {
		unix.EpollCtl(lp.epoll, unix.EPOLL_CTL_DEL, e.fd, nil)
		lp.release(e.slot)
		e.slot = -1
	}
	lp.live--
	if !o.do(func() { o.adopt(c) }) {
		lp.adopt(c)
	}
	return true
}

// adopt takes an established connection in. What is ready makes an event now, as it does whenever a socket is added.
func (lp *tcpLoop) adopt(c *conn) {
	c.loop = lp
	c.countIn(c.listener.countersOf(lp))
	lp.live++
	defer c.contain()
	for _, e := range []*end{&c.client, &c.backend} {
		if err := c.watch(e); err != nil {
			lp.relay.complain(err, "cannot wait for a connection's bytes, cutting it")
			c.abort()
			return
		}
	}
	lp.wheel.set(&c.timer, lp.now) // it knows itself what for
	c.work()
}
