package relay

import "golang.org/x/sys/unix"

// end is one of the two sockets of a connection.
type end struct {
	conn    *conn
	fd      int   // -1: none
	slot    int32 // -1: none
	ready   bool  // there may be something to read
	room    bool  // there may be room to write
	hungUp  bool  // the peer's FIN is in the receive queue, behind all bytes
	urgent  bool  // the peer sends urgent data, at which reads stop short
	finSent bool
	gone    bool // the peer has reset the connection or vanished
	written bool
	noDelay bool
}

// interest is what every socket of a connection is registered for, once.
const interest = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLPRI | unix.EPOLLET

// watch has the loop wait for e.
func (c *conn) watch(e *end) error {
	slot, err := c.loop.register(e.fd, interest, e)
	if err == nil {
		e.slot = slot
	}
	return err
}

// event is told of a socket of a connection.
func (e *end) event(events uint32) {
	c := e.conn
	defer c.contain()
	if events&unix.EPOLLOUT != 0 {
		e.room = true
	}
	if events&unix.EPOLLPRI != 0 {
		e.urgent = true
	}
	if events&unix.EPOLLRDHUP != 0 {
		e.hungUp = true
	}
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		e.ready = true
	}
	switch c.state {
	case waiting:
		if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
			e.gone = true
			c.clientLeft()
		}
	case dialling:
		switch {
		case e == &c.backend:
			c.answered(events)
		case e == &c.search.rival.end:
			c.rivalAnswered(events)
		case events&(unix.EPOLLERR|unix.EPOLLHUP) != 0:
			e.gone = true
			c.clientLeft()
		}
	case relaying, resetting:
		// Before we have sent a FIN, POLLHUP is a reset, even if another call has collected the error; after it, FINs in
		// both directions are that too (tcp_poll).
		if events&unix.EPOLLERR != 0 || events&unix.EPOLLHUP != 0 && !e.finSent {
			e.gone = true
		}
		if c.arrived || !c.giveAway() {
			c.arrived = false
			c.work()
		}
	}
}

// send writes what fits into the send buffer; false: the peer is gone.
func (e *end) send(b []byte) (int, bool) {
	e.announce()
	n, errno := writeRaw(e.fd, b)
	n, ok := e.sent(n, errno)
	if n < len(b) {
		e.room = false
	}
	return n, ok
}

// announce comes before each write. The first one needs no TCP_NODELAY, and many connections have only one.
func (e *end) announce() {
	if e.written && !e.noDelay {
		e.noDelay = true
		setNoDelay(e.fd)
	}
	e.written = true
}

// sent accounts for a write; false: the peer is gone.
func (e *end) sent(n int, errno unix.Errno) (int, bool) {
	switch {
	case errno == unix.EAGAIN:
		n, e.room = 0, false
	case errno != 0:
		e.gone = true
		return 0, false
	}
	if n > 0 {
		e.conn.moved = e.conn.loop.now
		e.conn.settle()
	}
	return n, true
}

func (e *end) close() {
	if e.fd < 0 {
		return
	}
	if e.slot >= 0 {
		e.conn.loop.release(e.slot)
	}
	closeRaw(e.fd)
	e.fd, e.slot = -1, -1
}

// abort closes by a reset.
func (e *end) abort() {
	if e.fd < 0 {
		return
	}
	unix.SetsockoptLinger(e.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	e.close()
}
