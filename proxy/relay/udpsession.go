package relay

import (
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a session keeps for another try: datagrams that fit an Ethernet frame together, as nearly all requests do, and that
// came close to each other, as the queries for A and AAAA do, which resolvers send from one port.
const (
	keptBytes     = 1500
	keptDatagrams = 4
	keptTogether  = 10 * time.Millisecond
)

// udpSession is one client's socket towards one backend. It belongs to the loop.
type udpSession struct {
	listener *UDPListener
	limit    *Limit // of which it has a slot; nil: none
	key      clientKey
	clientIP netip.Addr
	backend  netip.AddrPort
	fd       int
	slot     int32
	used     time.Time // of the last datagram in either direction; the LRU is in this order
	// last holds the latest datagrams to the backend, end to end, for as long as nothing has come back: what an ICMP error
	// is about. sizes are theirs, keptAt is when the first came.
	last    []byte
	sizes   []int
	keptAt  time.Time
	waiting bool // last is not answered yet
	resent  bool // last has been sent to this backend twice
	moved   bool // a refusal has brought it here, and nothing has come back yet
	// refusers are the backends that have refused last. Each is asked once per datagram, or backends that all refuse
	// would pass it round for ever.
	refusers []netip.AddrPort

	// Where replies go and come from, as sendmsg(2) wants it.
	name       unix.RawSockaddrInet6
	nameLen    uint32
	control    [controlSize]byte
	controlLen int
}

// event takes one batch from clients.
func (l *UDPListener) event(uint32) {
	in := l.loop.in
	n, errno := in.recv(l.fd, 0, batchSize, true)
	if errno != 0 { // if it belongs to the socket, it is an ICMP message about a reply: that client is gone
		return
	}
	for i := range n {
		key, drops, ok := in.from(i)
		if drops != l.drops {
			l.stats.overflows.Add(uint64(drops - l.drops))
			l.drops = drops
		}
		if !ok {
			l.stats.dropped.Add(1)
			continue
		}
		data := in.data(i)
		l.stats.datagramsIn.Add(1)
		l.stats.bytesIn.Add(uint64(len(data)))
		l.deliver(key, &in.names[i], data)
	}
}

// deliver sends a datagram to the backend of its client, which is chosen now if there is none.
func (l *UDPListener) deliver(key clientKey, name *unix.RawSockaddrInet6, data []byte) {
	s, ok := l.sessions.Get(key)
	if ok {
		s.used = l.loop.now
		s.leaveShunned()
		s.send(data)
		return
	}
	l.stats.accepted.Add(1)
	limit := l.settings.Load().Limit
	if limit != nil && !limit.take() {
		l.stats.limited.Add(1)
		l.stats.dropped.Add(1)
		return
	}
	if !l.room() {
		if limit != nil {
			limit.give()
		}
		l.stats.failed.Add(1)
		l.stats.dropped.Add(1)
		return
	}
	established := false
	defer func() {
		if !established { // also if the balancer has panicked
			l.relay.udp.give()
			if limit != nil {
				limit.give()
			}
		}
	}()
	s = &udpSession{listener: l, limit: limit, key: key, fd: -1, used: l.loop.now}
	s.setReturn(name)
	if !s.open(nil) {
		if l.balancer.Freed(nil) == nil {
			l.stats.noBackend.Add(1)
		} else {
			l.stats.limited.Add(1)
		}
		l.stats.dropped.Add(1)
		return
	}
	established = true
	l.stats.connected.Add(1)
	l.stats.active.Add(1)
	l.loop.live++
	l.sessions.Add(key, s)
	s.send(data)
}

// room makes sure that there may be one more session, at the expense of the one that has been idle for longest: of this
// listener, if it has its share, or else of the one that has most.
func (l *UDPListener) room() bool {
	full := l.sessions.Len() >= l.relay.maxSessionsPerListener()
	if !full && l.relay.udp.take() {
		return true
	}
	from := l
	if !full {
		from = l.relay.largestUDP(l)
	}
	if from.loop != l.loop {
		from.loop.do(from.evict)
		l.relay.udp.sessions.Add(1) // its place; there is one too many until that loop comes round
		return true
	}
	from.evict()
	return l.relay.udp.take()
}

// evict ends the session that has been idle for longest.
func (l *UDPListener) evict() {
	if _, oldest, ok := l.sessions.GetOldest(); ok {
		l.stats.evicted.Add(1)
		oldest.close()
	}
}

// send sends a client's datagram to the backend.
func (s *udpSession) send(data []byte) {
	joined := s.keep(data)
	errno := sendTo(s.fd, data)
	if refused(errno) && !joined || errno == unix.EMSGSIZE {
		// The error is that of an earlier datagram, and this one was not sent (udp_sendmsg takes sk_err first).
		errno = sendTo(s.fd, data)
	}
	switch {
	case errno == 0:
	case refused(errno):
		if s.waiting {
			data = nil // it is in last
		}
		s.move(data, errno)
	default: // no buffer, too large for the path: lost, as datagrams are
		s.listener.stats.dropped.Add(1)
	}
}

// keep remembers data until the backend answers. joined tells that something is remembered with it.
func (s *udpSession) keep(data []byte) (joined bool) {
	now := s.listener.loop.now
	joined = s.waiting && len(s.sizes) < keptDatagrams && len(s.last)+len(data) <= keptBytes && now.Sub(s.keptAt) < keptTogether
	if !joined {
		s.waiting, s.resent, s.refusers = len(data) <= keptBytes, false, s.refusers[:0]
		s.last, s.sizes, s.keptAt = s.last[:0], s.sizes[:0], now
	}
	if s.waiting {
		s.last, s.sizes = append(s.last, data...), append(s.sizes, len(data))
	}
	return joined
}

// sendAgain sends data, or, if it is nil, what was kept.
func (s *udpSession) sendAgain(data []byte) (errno unix.Errno) {
	if data != nil {
		return sendTo(s.fd, data)
	}
	rest := s.last
	for _, size := range s.sizes {
		if e := sendTo(s.fd, rest[:size]); e != 0 {
			errno = e
		}
		rest = rest[size:]
	}
	return errno
}

// event takes a few replies and queues them for the client.
func (s *udpSession) event(uint32) {
	l, loop := s.listener, s.listener.loop
	first := loop.reserve(l, replySize)
	n, errno := loop.out.recv(s.fd, first, replySize, false)
	switch {
	case errno == 0:
	case errno == unix.EAGAIN:
		return
	case refused(errno):
		s.refusedLater(errno)
		return
	case errno == unix.EMSGSIZE || errno == unix.EPROTO || errno == unix.ENOPROTOOPT:
		return // ICMP about one datagram; the path's MTU has been learnt
	default:
		s.close()
		return
	}
	s.used, s.waiting = loop.now, false
	l.sessions.Get(s.key) // which makes it the youngest
	if s.moved {
		s.moved = false
		l.stats.retried.Add(1)
	}
	for i := first; i < first+n; i++ {
		size := int(loop.out.hdrs[i].len)
		loop.out.address(i, size, s)
		l.stats.datagramsOut.Add(1)
		l.stats.bytesOut.Add(uint64(size))
	}
	loop.queued += n
}

// close ends the session.
func (s *udpSession) close() {
	s.disconnect()
	s.forget()
}

// forget lets go of the client.
func (s *udpSession) forget() {
	l := s.listener
	if current, ok := l.sessions.Peek(s.key); ok && current == s {
		l.sessions.Remove(s.key)
		l.stats.active.Add(-1)
		l.loop.live--
		l.relay.udp.give()
		if s.limit != nil {
			s.limit.give()
		}
	}
}

// expire ends idle sessions.
func (l *UDPListener) expire(now time.Time) {
	timeout := l.settings.Load().UDPTimeout
	for {
		_, s, ok := l.sessions.GetOldest()
		if !ok || now.Sub(s.used) < timeout {
			return
		}
		l.stats.expired.Add(1)
		s.close()
	}
}

// setReturn prepares what replies need: the client's address, and, as the source, the address the client's datagrams
// were sent to. Without the latter the kernel would choose by route, connection tracking would not recognise the reply
// and not undo the redirection.
func (s *udpSession) setReturn(name *unix.RawSockaddrInet6) {
	s.name = *name
	if name.Family == unix.AF_INET {
		s.nameLen = unix.SizeofSockaddrInet4
		s.clientIP = netip.AddrFrom16(s.key.addr).Unmap()
		info := putControl(s, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
		(*unix.Inet4Pktinfo)(info).Spec_dst = netip.AddrFrom16(s.key.local).Unmap().As4()
		return
	}
	s.nameLen = unix.SizeofSockaddrInet6
	s.clientIP = netip.AddrFrom16(s.key.addr)
	info := (*unix.Inet6Pktinfo)(putControl(s, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo))
	info.Addr = s.key.local
	if netip.AddrFrom16(s.key.local).IsLinkLocalUnicast() {
		info.Ifindex = s.key.scope
	}
}

// putControl writes a control message's header and returns where its body goes.
func putControl(s *udpSession, level, kind, size int) unsafe.Pointer {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&s.control[0]))
	h.Level, h.Type = int32(level), int32(kind)
	h.SetLen(unix.CmsgLen(size))
	s.controlLen = unix.CmsgSpace(size)
	return unsafe.Pointer(&s.control[unix.CmsgLen(0)])
}
