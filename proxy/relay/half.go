package relay

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// buffers hold bytes that their receiver has no room for: a connection that is idle has none.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// half is one direction of a connection.
type half struct {
	conn     *conn
	src, dst *end
	count    *atomic.Uint64
	kept     *[bufferSize]byte // what dst has no room for, from..to; nil: nothing
	from, to int
	pipe     *pipe // with inPipe bytes in it; nil: none
	inPipe   int
	full     uint8 // reads that filled the buffer, in a row
	splicing bool  // bytes go through a pipe
	small    bool  // fewer of them, last, than it is worth
	eof      bool  // nothing more will come from src; some may still be kept
	done     bool  // the end has been passed on to dst
}

// pending reports that bytes are kept which dst has to take first.
func (h *half) pending() bool { return h.kept != nil || h.inPipe > 0 }

// move moves what there is: up to one buffer, after which the other connections have their turn.
func (h *half) move() {
	for moved := false; ; moved = true {
		switch {
		case h.dst.gone:
			if !h.conn.mayLeave() {
				h.drop()
			}
			return
		case h.pending() && !h.flush():
			return
		case h.done || !h.src.ready && !h.eof:
			return
		case h.eof:
			h.pass()
			return
		case moved:
			h.conn.again()
			return
		case h.splicing:
			h.splice()
		default:
			h.copy()
		}
	}
}

// copy moves one buffer. A read that does not fill it has emptied the receive queue, so that no second one is needed
// to learn that: what comes later makes a new event (epoll(7)), and a FIN that was seen before the read is next. Urgent
// data is the exception (tcp_recvmsg stops in front of it).
func (h *half) copy() {
	buf := h.conn.loop.buf[:]
	n, errno := readRaw(h.src.fd, buf)
	if !h.came(n, errno) {
		return
	}
	switch {
	case n == len(buf):
		if h.full++; h.full >= spliceAfter {
			h.splicing, h.full = true, 0
		}
	case h.src.urgent:
	case h.src.hungUp:
		h.eof = true
	default:
		h.src.ready, h.full = false, 0
	}
	h.write(buf[:n])
}

// came accounts for what came from src, and reports that it was bytes.
func (h *half) came(n int, errno unix.Errno) bool {
	switch {
	case errno == unix.EAGAIN:
		h.src.ready = false
	case errno != 0:
		h.src.gone, h.eof = true, true
	case n == 0:
		h.eof = true
	default:
		h.count.Add(uint64(n))
		h.conn.moved, h.conn.rested = h.conn.loop.now, h.src == &h.conn.backend
		return true
	}
	return false
}

// write sends b and keeps what there is no room for.
func (h *half) write(b []byte) {
	n := 0
	if h.dst.room {
		var ok bool
		if n, ok = h.dst.send(b); !ok && !h.conn.mayLeave() {
			return
		}
	}
	if n < len(b) {
		h.kept = buffers.Get().(*[bufferSize]byte)
		h.from, h.to = 0, copy(h.kept[:], b[n:])
	}
}

// flush sends what is kept and reports that nothing is any more.
func (h *half) flush() bool {
	if !h.dst.room {
		return false
	}
	if h.kept != nil {
		n, ok := h.dst.send(h.kept[h.from:h.to])
		if h.from += n; !ok || h.from < h.to {
			return false
		}
		h.drop()
	}
	return h.inPipe == 0 || h.drainPipe()
}

// drop forgets what is kept.
func (h *half) drop() {
	if h.kept != nil {
		buffers.Put(h.kept)
		h.kept = nil
	}
	if h.pipe == nil {
		return
	}
	r := h.conn.listener.relay
	if h.inPipe == 0 {
		h.conn.loop.pipes.give(r, h.pipe)
	} else {
		h.conn.loop.pipes.discard(r, h.pipe)
	}
	h.pipe, h.inPipe = nil, 0
}

// pass tells dst of the end of the stream, unless that was a reset, or dst is known to have reset meanwhile. If the other
// direction has ended before, closing sends what FIN is still due.
func (h *half) pass() {
	c := h.conn
	if c.state != relaying || h.src.gone || h == &c.out && c.leave(errClosedEarly) {
		return
	}
	c.settle()
	h.done = true
	if h.src.finSent {
		c.end()
		return
	}
	if err := shutdownRaw(h.dst.fd); err != nil {
		h.dst.gone = true
		return
	}
	h.dst.finSent = true
	c.halfClose()
}
