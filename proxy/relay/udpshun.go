package relay

import (
	"net/netip"
	"slices"
	"time"
)

// A host sends at most one ICMP port unreachable a second to a peer, after a burst of six (icmp_ratelimit, icmp(7)). So of
// the clients whose datagrams reach a dead backend, most would hear nothing, and neither would the relay. One refusal has
// to do for all: the backend is shunned for a while, by every client of the listener, and what is unanswered goes
// elsewhere with it.
const (
	// shunTime is longer than a host is silent between two refusals, so that whoever tries next is told.
	shunTime = 2 * time.Second
	// shunFresh is how old an unanswered datagram may be to be sent elsewhere. An older one had its answer, or none is
	// to come; sending it again would only repeat it.
	shunFresh = time.Second
)

// pick asks the balancer for a backend that is not in tried, and not shunned unless no other is left.
func (l *UDPListener) pick(client netip.Addr, tried []netip.AddrPort) (netip.AddrPort, bool) {
	if len(l.shunned) > 0 {
		if backend, ok := l.balancer.Pick(client, l.avoid(tried)); ok {
			return backend, true
		}
	}
	return l.balancer.Pick(client, tried)
}

// avoid adds the backends that are shunned now to tried.
func (l *UDPListener) avoid(tried []netip.AddrPort) []netip.AddrPort {
	avoid := slices.Clone(tried)
	for backend, until := range l.shunned {
		if l.loop.now.Before(until) {
			avoid = append(avoid, backend)
		} else {
			delete(l.shunned, backend)
		}
	}
	return avoid
}

// shun keeps clients from a backend that has refused one of them, and moves the sessions that wait for its answer. The
// others move when they are used.
func (l *UDPListener) shun(backend netip.AddrPort) {
	now := l.loop.now
	if now.Before(l.shunned[backend]) {
		return
	}
	l.shunned[backend] = now.Add(shunTime)
	for _, s := range l.sessions.Values() {
		if s.backend != backend || s.fd < 0 || !s.waiting || now.Sub(s.used) >= shunFresh || slices.Contains(s.refusers, backend) {
			continue
		}
		s.refusers = append(s.refusers, backend)
		if s.open(s.refusers) {
			l.stats.retries.Add(1)
			s.moved = true
			s.sendAgain(nil)
		}
	}
}

// leaveShunned moves a session that is about to be used to a backend that is not shunned, if there is one.
func (s *udpSession) leaveShunned() {
	if s.listener.loop.now.Before(s.listener.shunned[s.backend]) {
		s.open(s.listener.avoid(nil)) // not by pick's fall-back, or those that are shunned would pass it round
	}
}
