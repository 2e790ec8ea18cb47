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
//
// Writes that make no progress for as long look whether there is still somebody to write for.
const drainPatience = 5 * time.Second

// copyBoth relays until both directions have ended or one has failed.
func (s *session) copyBoth() {
	var other sync.WaitGroup
	other.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				s.panicked(p)
			}
		}()
		s.copyHalf(&s.backend, &s.client, &s.listener.stats.bytesOut)
	})
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
			werr := s.write(src, dst, buf[:n])
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

var errSourceGone = errors.New("the sender has gone and the receiver takes nothing")

// write waits for as long as dst's peer takes bytes, however slowly. When it takes none, a half-closed session expires,
// and a src that has been reset meanwhile, which nobody reads, is noticed.
func (s *session) write(src, dst *end, b []byte) error {
	n, err := dst.writeNow(b)
	if err != nil || n == len(b) {
		return err
	}
	b = b[n:]
	defer dst.conn.SetWriteDeadline(time.Time{})
	limit := s.listener.relay.cfg.HalfCloseTimeout
	left, since := -1, time.Now()
	for {
		dst.conn.SetWriteDeadline(time.Now().Add(min(drainPatience, limit)))
		n, err := dst.conn.Write(b)
		b = b[n:]
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		now := 0
		dst.raw.Control(func(fd uintptr) { now = unsent(int(fd)) })
		switch {
		case n > 0 || now != left:
			left, since = now, time.Now()
		case s.halfClosed.Load() && time.Since(since) >= limit:
			return err
		case time.Since(since) >= drainPatience && src.reset():
			return errSourceGone
		}
	}
}

// writeNow writes what fits into the send buffer.
func (e *end) writeNow(b []byte) (n int, err error) {
	if cerr := e.raw.Write(func(fd uintptr) bool {
		for {
			if n, err = unix.Write(int(fd), b); err != unix.EINTR {
				return true
			}
		}
	}); cerr != nil {
		return 0, cerr
	}
	if err == unix.EAGAIN {
		err = nil
	}
	return max(n, 0), err
}

// reset reports that the peer has reset the connection or vanished. After our FIN it cannot be told from TIME_WAIT.
func (e *end) reset() bool {
	gone := false
	e.raw.Control(func(fd uintptr) { gone = wasReset(int(fd)) })
	return gone && !e.finSent.Load()
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
}

// writeFailed ends the direction from src to dst, whose peer has reset its connection or vanished. What dst sent before
// that is still read by the other direction, which then comes to the same end and resets src; if it has ended already,
// this direction has to.
func (s *session) writeFailed(src, dst *end, err error) {
	switch {
	case errors.Is(err, net.ErrClosed):
	case errors.Is(err, errSourceGone):
		s.broken.Store(true)
		abort(dst.conn)
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
			if !wasReset(int(fd)) { // not peerGone: POLLHUP also means FINs in both directions
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
