package relay

import (
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// receiveBuffer is asked for on listening sockets, so that a burst survives until the loop comes round. The kernel's
// default of 208 KiB holds some 200 small datagrams, as each is charged for its bookkeeping too.
const receiveBuffer = 4 << 20

// UDPListener is one UDP socket and its sessions. A session is a client address and the backend socket that serves it; it
// begins with a datagram and ends when it has been idle for [Config.UDPTimeout], when its backend leaves, or when there
// are too many and it is the one idle for longest.
type UDPListener struct {
	relay    *Relay
	loop     *udpLoop
	fd       int
	addr     netip.AddrPort
	balancer Balancer
	log      *logrus.Entry
	stats    counters
	settings atomic.Pointer[Settings] // never nil, complete
	release  func()                   // gives back what chargeListener took
	closed   chan struct{}
	ending   sync.Once

	mu       sync.Mutex // guards what follows
	open     bool
	isClosed bool

	// The loop's own:
	sessions *simplelru.LRU[clientKey, *udpSession]
	slot     int32
	drops    uint32                       // SO_RXQ_OVFL as last seen
	shunned  map[netip.AddrPort]time.Time // backends that have refused lately, and until when they are left alone
}

// ListenUDP binds addr, open. name is for logs. Nothing is read until Serve is called.
func (r *Relay) ListenUDP(addr netip.AddrPort, name string, b Balancer) (*UDPListener, error) {
	if addr.Port() == 0 {
		return nil, fmt.Errorf("listening on %s: a port is needed", addr)
	}
	loop, err := r.udpLoop()
	if err != nil {
		return nil, err
	}
	release, err := r.chargeListener()
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", addr, err)
	}
	fd, err := r.bindUDP(addr)
	if err != nil {
		release()
		return nil, fmt.Errorf("listening on %s: %w", addr, os.NewSyscallError("bind", err))
	}
	l := &UDPListener{
		release: release,
		relay:   r, loop: loop, fd: fd, addr: addr, balancer: b, open: true, closed: make(chan struct{}),
		shunned: map[netip.AddrPort]time.Time{},
		log:     r.cfg.Log.WithFields(logrus.Fields{"frontend": addr, "service": name}),
	}
	l.Configure(Settings{})
	if l.sessions, err = simplelru.NewLRU[clientKey, *udpSession](r.maxSessionsPerListener(), nil); err != nil {
		unix.Close(fd)
		release()
		return nil, err
	}
	return l, nil
}

// bindUDP makes a listening socket. It asks for what replies and counters need: the address each datagram was sent to,
// and the number of those that the socket had no room for.
func (r *Relay) bindUDP(addr netip.AddrPort) (fd int, err error) {
	if fd, err = udpSocket(addr.Addr()); err != nil {
		return -1, err
	}
	options := []struct{ level, name int }{{unix.SOL_SOCKET, unix.SO_RXQ_OVFL}, {unix.IPPROTO_IP, unix.IP_PKTINFO}}
	if addr.Addr().Is6() {
		options = append(options[:1], struct{ level, name int }{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO},
			struct{ level, name int }{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY})
	}
	for _, o := range options {
		if err == nil {
			err = unix.SetsockoptInt(fd, o.level, o.name, 1)
		}
	}
	// Beyond net.core.rmem_max takes CAP_NET_ADMIN; as much as is allowed will do.
	if err == nil && unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	if err == nil && r.cfg.ListenControl != nil {
		err = r.cfg.ListenControl(fd, addr)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(addr))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Addr returns the address that is listened on.
func (l *UDPListener) Addr() netip.AddrPort { return l.addr }

// Stats returns the counters. A session counts as a connection.
func (l *UDPListener) Stats() Stats { return l.stats.snapshot() }

// Serve begins to relay datagrams. It does not wait for them.
func (l *UDPListener) Serve() { l.loop.do(l.join) }

// join runs in the loop, like everything below that has no lock.
func (l *UDPListener) join() {
	if l.shut() {
		return
	}
	slot, err := l.loop.register(l.fd, unix.EPOLLIN, l)
	if err != nil {
		l.log.WithError(err).Error("cannot wait for datagrams")
		return
	}
	l.slot = slot
	l.loop.members[l] = struct{}{}
	l.relay.mu.Lock()
	l.relay.udpListeners[l] = struct{}{}
	l.relay.mu.Unlock()
}

func (l *UDPListener) shut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isClosed
}

// SetOpen decides whether datagrams are relayed or refused. While refused, the socket is bound to an interface that does
// not exist: it keeps its port, but the kernel finds no socket for what arrives and answers with ICMP port unreachable.
func (l *UDPListener) SetOpen(open bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == open || l.isClosed {
		return nil
	}
	if err := setReceiving(l.fd, l.addr.Addr().Is4(), open); err != nil {
		return fmt.Errorf("listening on %s: %w", l.addr, err)
	}
	l.open = open
	return nil
}

// noInterface is an index that the kernel, which counts up from 1, gives to no interface.
const noInterface = 1<<31 - 2

// setReceiving needs no privilege: an interface may be chosen by anybody for a socket that has none, and is forgotten by
// connect(2) to AF_UNSPEC. Connecting the socket to some address would refuse as well, but not for once: what an IPv6
// socket was connected to stays in force after that (__udp_disconnect does not clear sk_v6_daddr), so that it would never
// again receive from anybody else. It is left for IPv4 on kernels before 5.1, or before 5.7 without CAP_NET_RAW, which
// refuse the choice. An IPv6 socket then goes on receiving there, and what it receives is dropped for want of a backend.
func setReceiving(fd int, v4, open bool) error {
	if open {
		return unconnect(fd)
	}
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, noInterface)
	if err != unix.ENOPROTOOPT && err != unix.EPERM {
		return err
	}
	if v4 {
		return connectTo(fd, discard)
	}
	return nil
}

// discard is the discard service (RFC 863) of this host, from which nothing comes.
var discard = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 9)

// Retain ends the sessions whose backend is not in usable. The next datagram of such a client begins a new one.
func (l *UDPListener) Retain(usable []netip.AddrPort) {
	keep := make(map[netip.AddrPort]struct{}, len(usable))
	for _, b := range usable {
		keep[b] = struct{}{}
	}
	l.loop.do(func() {
		for _, s := range l.sessions.Values() {
			if _, ok := keep[s.backend]; !ok {
				l.stats.drained.Add(1)
				s.close()
			}
		}
	})
}

// Close stops listening and ends all sessions: a reply could not leave from the address it is expected from.
func (l *UDPListener) Close() error {
	l.markClosed()
	if !l.loop.do(l.end) {
		<-l.loop.ended
		l.end() // if the loop has not done it
	}
	<-l.closed
	return nil
}

// markClosed keeps SetOpen from using the descriptor from now on.
func (l *UDPListener) markClosed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isClosed = true
}

// end runs in the loop, or after it.
func (l *UDPListener) end() {
	l.ending.Do(func() {
		defer func() {
			unix.Close(l.fd)
			l.release()
			close(l.closed)
		}()
		for _, s := range l.sessions.Values() {
			s.close()
		}
		if l.loop.replyTo == l {
			l.loop.flush() // before somebody else has the descriptor's number
		}
		if _, joined := l.loop.members[l]; joined {
			l.loop.release(l.slot)
			delete(l.loop.members, l)
			l.relay.mu.Lock()
			delete(l.relay.udpListeners, l)
			l.relay.retired.UDP = l.relay.retired.UDP.Add(l.Stats().ended())
			l.relay.mu.Unlock()
		}
	})
}

// udpBudget is what all sessions share.
type udpBudget struct {
	sessions atomic.Int64
	max      int64
}

func (b *udpBudget) take() bool {
	if b.sessions.Add(1) > b.max {
		b.sessions.Add(-1)
		return false
	}
	return true
}

func (b *udpBudget) give() { b.sessions.Add(-1) }

// maxSessionsPerListener leaves half of all sessions to the other listeners.
func (r *Relay) maxSessionsPerListener() int { return max(int(r.udp.max/2), 1) }
