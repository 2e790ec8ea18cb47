package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
)

// end is one of the two sockets of a session.
type end struct {
	conn *net.TCPConn
	raw  syscall.RawConn
	// finSent is set before this side's FIN is sent.
	finSent atomic.Bool
}

func (e *end) gone() bool {
	gone := true
	e.raw.Control(func(fd uintptr) { gone = peerGone(int(fd)) })
	return gone
}

// session is one client connection and, once dialled, its backend connection.
type session struct {
	listener *Listener
	client   end
	clientIP netip.Addr
	ctx      context.Context // ends when the session is cut
	cancel   context.CancelFunc
	waited   bool // for file descriptors, so that the client may be gone

	mu      sync.Mutex // guards backend.conn against cut
	backend end

	// halfClosed is set once one direction has ended and the other goes on under HalfCloseTimeout.
	halfClosed atomic.Bool
	// broken is set when either peer reset its connection or vanished, expired when HalfCloseTimeout ended the session.
	broken, expired atomic.Bool
}

func newSession(l *Listener, conn *net.TCPConn) *session {
	s := &session{listener: l, client: end{conn: conn}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.clientIP = conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	return s
}

// serveConn is the goroutine of one connection, from accept to close. The Listener's live set owns it.
func (s *session) serveConn() {
	l := s.listener
	counted := false
	defer l.endConn(s)
	defer s.cancel()
	defer s.client.conn.Close()
	defer func() {
		if p := recover(); p != nil {
			s.panicked(p)
			if !counted {
				l.stats.failed.Add(1)
			}
		}
	}()
	var err error
	if s.client.raw, err = s.client.conn.SyscallConn(); err != nil {
		l.stats.failed.Add(1)
		return
	}
	conn, backend, err := s.dial()
	counted = true
	if err != nil {
		s.countFailure(err)
		abort(s.client.conn)
		return
	}
	defer l.balancer.Release(backend)
	defer conn.Close()
	l.stats.connected.Add(1)
	if !s.connect(conn) {
		abort(s.client.conn)
		return
	}
	start := time.Now()
	s.copyBoth()
	s.logEnd(backend, time.Since(start))
}

// panicked cuts the session. One connection's fault must not take the other connections of this node with it.
func (s *session) panicked(p any) {
	s.listener.log.WithFields(logrus.Fields{"panic": p, "stack": string(debug.Stack())}).Error("relaying a connection panicked, please report it")
	s.cut()
}

// connect takes the backend connection over, unless the session has been cut while it was being dialled.
func (s *session) connect(conn *net.TCPConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backend.conn, s.backend.raw = conn, raw
	return s.ctx.Err() == nil
}

// cut ends the session from outside, by a reset on both sides.
func (s *session) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel()
	abort(s.client.conn)
	if s.backend.conn != nil {
		abort(s.backend.conn)
	}
}

func (s *session) countFailure(err error) {
	switch {
	case errors.Is(err, errAbandoned):
		s.listener.stats.abandoned.Add(1)
	case errors.Is(err, errNoBackend):
		s.listener.stats.noBackend.Add(1)
	default:
		s.listener.stats.failed.Add(1)
	}
	s.listener.log.WithField("client", s.clientIP).WithError(err).Debug("connection not relayed")
}

func (s *session) logDial(backend netip.AddrPort, err error) {
	if !s.listener.log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		return
	}
	s.listener.log.WithFields(logrus.Fields{"client": s.clientIP, "backend": backend}).WithError(err).Debug("backend not reached")
}

func (s *session) logEnd(backend netip.AddrPort, took time.Duration) {
	if s.broken.Load() {
		s.listener.stats.resets.Add(1)
	}
	if s.expired.Load() {
		s.listener.stats.halfClosed.Add(1)
	}
	if !s.listener.log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		return
	}
	s.listener.log.WithFields(logrus.Fields{
		"client": s.clientIP, "backend": backend, "took": took.String(), "reset": s.broken.Load(), "expired": s.expired.Load(),
	}).Debug("connection ended")
}
