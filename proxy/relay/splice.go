package relay

const (
	spliceAfter = 2        // full buffers in a row that show a direction to be bulk
	spliceLeast = 16 << 10 // less than so many bytes at a time are cheaper to copy
	spliceMost  = pipeSize
)

// splice moves bytes without copying them. The pipe is the direction's only while there are bytes in it, so that a
// connection that is idle costs none.
func (h *half) splice() {
	lp, r := h.conn.loop, h.conn.listener.relay
	if h.pipe == nil {
		if h.pipe = lp.pipes.take(r); h.pipe == nil {
			h.copy()
			return
		}
	}
	n, errno := splice(h.src.fd, h.pipe.w, spliceMost)
	if !h.came(n, errno) {
		h.splicing = h.splicing && !h.small
		h.drop()
		return
	}
	h.small = n < spliceLeast
	h.inPipe = n
	if h.dst.room {
		h.drainPipe()
	}
}

// drainPipe sends what is in the pipe and reports that it is empty. Only EAGAIN says that there is no room: a signal, too,
// ends splice(2) early (splice_to_socket), and then no event would ever tell of room.
func (h *half) drainPipe() bool {
	h.dst.announce()
	for h.inPipe > 0 {
		n, errno := splice(h.pipe.r, h.dst.fd, h.inPipe)
		n, ok := h.dst.sent(n, errno)
		if h.inPipe -= n; !ok || n == 0 {
			return false
		}
	}
	h.drop()
	return true
}
