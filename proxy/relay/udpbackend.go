package relay

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// dial picks a backend that is not in tried and makes a socket towards it.
func (s *udpSession) dial(tried []netip.AddrPort) (fd int, backend netip.AddrPort, ok bool) {
	l := s.listener
	for {
		backend, ok := l.pick(s.clientIP, tried)
		if !ok {
			return -1, netip.AddrPort{}, false
		}
		fd, err := connectUDP(backend, l.relay.cfg.Mark)
		if err != nil && (isShortage(err) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAGAIN)) {
			// Ours, not the backend's: one idle session less, and it is asked for again.
			l.relay.complain(err, "cannot open UDP sessions, ending idle ones")
			l.balancer.Report(s.clientIP, backend, 0, context.Canceled)
			_, oldest, found := l.sessions.GetOldest()
			if !found || oldest == s {
				return -1, netip.AddrPort{}, false
			}
			l.evict()
			continue
		}
		l.balancer.Report(s.clientIP, backend, 0, err)
		if err == nil {
			return fd, backend, true
		}
		tried = append(tried, backend)
	}
}

// open connects the session to a backend that is not in tried, and lets go of the one it has.
func (s *udpSession) open(tried []netip.AddrPort) bool {
	fd, backend, ok := s.dial(tried)
	if !ok {
		return false
	}
	slot, err := s.listener.loop.register(fd, unix.EPOLLIN, s)
	if err != nil {
		unix.Close(fd)
		s.listener.balancer.Release(backend)
		return false
	}
	s.disconnect()
	s.fd, s.slot, s.backend, s.resent = fd, slot, backend, false
	return true
}

// move takes the session, and the datagram that its backend refused, to another backend. If there is none, the same one
// gets it once more, since it may be restarting.
func (s *udpSession) move(data []byte, why error) {
	l := s.listener
	for refuser := s.backend; ; refuser = s.backend {
		if !slices.Contains(s.refusers, refuser) {
			s.refusers = append(s.refusers, refuser)
			l.balancer.Fail(s.clientIP, refuser, why)
			l.shun(refuser)
			if s.fd < 0 {
				return // the session has been ended with others of that backend
			}
		}
		switch {
		case s.open(s.refusers):
			l.stats.retries.Add(1)
		case !s.resent:
			s.resent = true
		default:
			l.stats.dropped.Add(1)
			s.close()
			return
		}
		errno := s.sendAgain(data)
		if !refused(errno) {
			s.moved = s.moved || s.backend != refuser
			return
		}
		why = errno
	}
}

// refusedLater handles an ICMP error that came after the datagram had been sent.
func (s *udpSession) refusedLater(errno unix.Errno) {
	if s.waiting { // otherwise it is about a datagram that is forgotten, and the next one will tell
		s.move(nil, errno)
	}
}

// disconnect lets go of the backend.
func (s *udpSession) disconnect() {
	if s.fd < 0 {
		return
	}
	s.listener.loop.release(s.slot)
	closeRaw(s.fd)
	s.fd = -1
	s.listener.balancer.Release(s.backend)
}

// connectUDP makes a socket towards a backend. It does not wait, and says nothing about the backend.
func connectUDP(backend netip.AddrPort, mark uint32) (int, error) {
	fd, err := udpSocket(backend.Addr())
	if err != nil {
		return -1, err
	}
	if mark != 0 {
		err = setMark(fd, mark)
	}
	if err == nil {
		err = connectTo(fd, backend)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func udpSocket(addr netip.Addr) (int, error) {
	family := unix.AF_INET6
	if addr.Is4() {
		family = unix.AF_INET
	}
	return unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// refused tells what ICMP says about a backend from other errors.
func refused(errno unix.Errno) bool {
	switch errno {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENETDOWN, unix.EACCES:
		return true
	}
	return false
}
