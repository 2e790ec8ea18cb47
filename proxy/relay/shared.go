package relay

import (
	"fmt"
	"net/netip"
	"sync"
)

// SharedListener is a listening socket that many Listeners share, which then cost neither a port nor a descriptor. The
// address that a client has dialled tells whose its connection is, so it works only for what comes here by one of two ways,
// and costs a system call for each connection: rules have redirected it, and connection tracking knows (SO_ORIGINAL_DST), or
// the kernel was told to assign it to this socket, and it has that address as its own (getsockname). What nobody has asked for
// is reset and counted in [Stats].Strays: it comes directly, or its Listener has just been closed.
//
// Its Listeners share the accept queue, too: a flood on one fills it for all, and at the limit of descriptors one
// connection that waits holds up those behind it, whosever they are. One that has its share of all connections that there may
// be does not (share.go): those beyond it are reset, and counted as [Stats].Limited. All else, limits and settings and
// counters, each has for itself.
type SharedListener struct {
	acceptor
	loops int
	count counters // of what is nobody's
}

// share is what a Listener has of a shared socket.
type share struct {
	of     *SharedListener
	closed chan struct{}
	ending sync.Once

	ended bool // the loop's own
}

// ListenShared binds addr, whose port has to be given, and listens for what rules redirect there. Nothing is accepted until
// Serve is called. It does not count among the listeners that there may be, as there should be few. The errors are those of
// Listen.
func (r *Relay) ListenShared(addr netip.AddrPort) (*SharedListener, error) {
	return r.listenShared(addr, false)
}

// ListenAssigned is ListenShared for connections that the kernel assigns to the socket, by a BPF program (sk_lookup).
// Connection tracking is not asked about them: it may know an earlier destination, which others have redirected to the VIP.
func (r *Relay) ListenAssigned(addr netip.AddrPort) (*SharedListener, error) {
	return r.listenShared(addr, true)
}

func (r *Relay) listenShared(addr netip.AddrPort, assigned bool) (*SharedListener, error) {
	if addr.Port() == 0 {
		return nil, fmt.Errorf("listening on %s: a port is needed", addr)
	}
	loop, loops, err := r.tcpLoop()
	if err != nil {
		return nil, err
	}
	s := &SharedListener{loops: loops}
	s.acceptor = acceptor{
		loop: loop, addr: addr, routes: map[netip.AddrPort]*Listener{}, shared: s, assigned: assigned,
		release: r.chargeSocket(), retire: func() { r.removeShared(s) },
	}
	if err := s.bind(r); err != nil {
		return nil, err
	}
	if err := r.addShared(s); err != nil {
		s.discard()
		return nil, err
	}
	return s, nil
}

// Listen returns a Listener that shares the socket. No client comes to it before Route says which. The error is
// ErrShutdown.
func (s *SharedListener) Listen(name string, b Balancer) (*Listener, error) {
	l := s.relay.newListener(&s.acceptor, s.loops, name, b)
	l.share = &share{of: s, closed: make(chan struct{})}
	return l, s.relay.add(l)
}

// Addr returns the address that is listened on.
func (s *SharedListener) Addr() netip.AddrPort { return s.addr }

// Stats returns the counters of what concerns none of the Listeners: Strays and AcceptErrors.
func (s *SharedListener) Stats() Stats { return s.count.snapshot() }

// Serve begins to accept connections. It does not wait for them.
func (s *SharedListener) Serve() { s.loop.do(s.join) }

// SetOpen decides whether clients are accepted or refused, all of them, as that of a Listener does.
func (s *SharedListener) SetOpen(open bool) error { return s.setOpen(open) }

// Control has do use the descriptor of the socket. The error is do's, or ErrShutdown if the socket is closed.
func (s *SharedListener) Control(do func(fd int) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		return ErrShutdown
	}
	return do(s.fd)
}

// Close stops listening. Its Listeners have to be closed by themselves. It waits for the loop.
func (s *SharedListener) Close() error {
	s.shut()
	<-s.closed
	return nil
}

// Route changes which destinations are whose: connections to each of these addresses are the Listener's from now on; nil:
// nobody's. The unspecified address of a family stands for all that have no route of their own. It is in force when Route
// returns. Routes to a Listener that has been closed lead nowhere.
func (s *SharedListener) Route(changes map[netip.AddrPort]*Listener) {
	s.loop.ask(func() {
		for to, l := range changes {
			if l == nil {
				delete(s.routes, to)
			} else {
				s.routes[to] = l
			}
		}
	})
}

// shut begins to close l.
func (s *share) shut(l *Listener) {
	if !s.of.loop.do(func() { s.end(l) }) {
		<-s.of.loop.ended
		s.end(l)
	}
}

// end runs in the loop, or after it.
func (s *share) end(l *Listener) {
	s.ending.Do(func() {
		defer close(s.closed)
		s.ended = true
		l.relay.remove(l)
		if w := s.of.waiting; w != nil && w.listener == l {
			s.of.turnAway()
			s.of.accept()
		}
	})
}

func (r *Relay) addShared(s *SharedListener) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrShutdown
	}
	r.shared[s] = struct{}{}
	return nil
}

func (r *Relay) removeShared(s *SharedListener) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.shared, s)
	r.retired.TCP = r.retired.TCP.Add(s.Stats())
}
