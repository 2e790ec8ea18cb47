package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// buffers are held only while bytes are on their way: a connection that is idle holds none.
var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// drainPatience is how long bytes that precede a reset may fail to make any progress before the reset overtakes them.
const drainPatience = 5 * time.Second

// copyBoth relays until both directions have ended or one has failed.
func (s *session) copyBoth() {
	var other sync.WaitGroup
	other.Go(func() { s.copyHalf(&s.backend, &s.client, &s.listener.stats.bytesOut) })
	s.copyHalf(&s.client, &s.backend, &s.listener.stats.bytesIn)
	other.Wait()
}

// copyHalf relays one direction until it ends. It returns when this direction's end has been passed on, and nothing is
// left to watch for on src.
func (s *session) copyHalf(src, dst *end, count *atomic.Uint64) {
	for {
		s.rearm(src)
		n, buf, err := src.read()
		if n > 0 {
			count.Add(uint64(n))
			_, werr := dst.conn.Write(buf[:n])
			buffers.Put(buf)
			if werr != nil {
				s.writeFailed(src, dst, werr)
				return
			}
			continue
		}
		switch {
		case errors.Is(err, net.ErrClosed): // the other direction has ended the session
		case errors.Is(err, os.ErrDeadlineExceeded):
			s.expired.Store(true)
			abort(src.conn)
			abort(dst.conn)
		case errors.Is(err, io.EOF):
			s.passFIN(src, dst)
		default:
			s.passReset(dst)
		}
		return
	}
}

// read waits for bytes and then takes a buffer for them, which the caller returns to the pool if n > 0. The end of the
// stream is io.EOF, or an error where the peer ended it by a reset.
func (e *end) read() (n int, buf *[64 << 10]byte, err error) {
	waitErr := e.raw.Read(func(fd uintptr) bool {
		buf = buffers.Get().(*[64 << 10]byte)
		for {
			n, err = unix.Read(int(fd), buf[:])
			if err != unix.EINTR {
				break
			}
		}
		if n > 0 {
			return true
		}
		buffers.Put(buf)
		buf = nil
		if err == nil {
			err = io.EOF
			// Asked after the state was read: another goroutine may be sending the FIN right now.
			if wasReset(int(fd)) && !e.finSent.Load() {
				err = unix.ECONNRESET
			}
		}
		return err != unix.EAGAIN
	})
	if waitErr != nil {
		return 0, nil, waitErr
	}
	return max(n, 0), buf, err
}

// passFIN ends the direction towards dst and, if the other direction is still alive, limits how long it may be idle. Then
// it watches src: a peer that has sent its FIN may still vanish or reset, and nobody else would notice while the other
// direction is quiet.
func (s *session) passFIN(src, dst *end) {
	dst.finSent.Store(true)
	if src.finSent.Load() {
		// The other direction has ended before. Closing sends what FIN is still due.
		src.conn.Close()
		dst.conn.Close()
		return
	}
	switch err := dst.conn.CloseWrite(); {
	case errors.Is(err, net.ErrClosed): // the other direction has ended the session
		return
	case err != nil: // dst's peer has reset it
		s.passReset(src)
		return
	}
	if src.finSent.Load() { // the other direction has ended meanwhile and did not see this end
		src.conn.Close()
		dst.conn.Close()
		return
	}
	s.halfClosed.Store(true)
	s.rearm(dst)
	gone := false
	src.raw.Read(func(fd uintptr) bool {
		gone = peerGone(int(fd)) && !src.finSent.Load()
		return gone
	})
	if gone {
		s.passReset(dst)
	}
}

// rearm gives a half-closed session another HalfCloseTimeout. src is the side that may still send.
func (s *session) rearm(src *end) {
	if !s.halfClosed.Load() {
		return
	}
	deadline := time.Now().Add(s.listener.relay.cfg.HalfCloseTimeout)
	src.conn.SetReadDeadline(deadline)
	to := &s.client
	if src == to {
		to = &s.backend
	}
	to.conn.SetWriteDeadline(deadline)
}

// writeFailed ends the direction from src to dst, whose peer has reset its connection or vanished. What dst sent before
// that is still read by the other direction, which then comes to the same end and resets src; if it has ended already,
// this direction has to.
func (s *session) writeFailed(src, dst *end, err error) {
	switch {
	case errors.Is(err, net.ErrClosed):
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.expired.Store(true)
		abort(src.conn)
		abort(dst.conn)
	default:
		s.broken.Store(true)
		if src.finSent.Load() {
			s.passReset(src)
		}
	}
}

// passReset resets dst once its peer has everything that was written to it.
func (s *session) passReset(dst *end) {
	s.broken.Store(true)
	dst.drain()
	abort(dst.conn)
}

// drain waits until the peer has acknowledged all bytes. The kernel has no event for that, so it is asked again, and
// given up when the number stands still.
func (e *end) drain() {
	const shortest, longest = time.Millisecond, 50 * time.Millisecond
	last, since, pause := -1, time.Now(), shortest
	for {
		left := 0
		if err := e.raw.Control(func(fd uintptr) {
			if !peerGone(int(fd)) {
				left = unsent(int(fd))
			}
		}); err != nil || left == 0 {
			return
		}
		if left != last {
			last, since = left, time.Now()
		} else if time.Since(since) > drainPatience {
			return
		}
		time.Sleep(pause)
		pause = min(2*pause, longest)
	}
}
