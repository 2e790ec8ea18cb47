package relay

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/sirupsen/logrus"
)

// backlog is the longest accept queue asked for; the kernel caps it at net.core.somaxconn.
const backlog = 65535

// Listener is where the clients of one balancer arrive: at a socket of its own ([Relay.Listen]), or at one that it shares
// ([SharedListener.Listen]).
type Listener struct {
	relay    *Relay
	name     string
	socket   *acceptor // its own, unless shared
	balancer Balancer
	stats    []atomic.Pointer[counters] // by loop, made when first needed
	settings atomic.Pointer[Settings]   // never nil, complete
	retained atomic.Pointer[retained]   // nil: all backends

	share *share // nil: the socket is its own
}

// Listen binds addr and listens, open. name is for logs. Nothing is accepted until Serve is called. The port has to be
// given: one that the kernel chose would be lost by SetOpen(false), for lack of SOCK_BINDPORT_LOCK (tcp_set_state). The
// error is the kernel's (EADDRINUSE, EACCES), ErrShutdown, or ErrTooManyListeners.
func (r *Relay) Listen(addr netip.AddrPort, name string, b Balancer) (*Listener, error) {
	if addr.Port() == 0 {
		return nil, fmt.Errorf("listening on %s: a port is needed", addr)
	}
	loop, loops, err := r.tcpLoop()
	if err != nil {
		return nil, err
	}
	release, err := r.chargeListener()
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", addr, err)
	}
	l := r.newListener(&acceptor{loop: loop, addr: addr, release: release}, loops, name, b)
	l.socket.owner, l.socket.retire = l, func() { r.remove(l) }
	if err := l.socket.bind(r); err != nil {
		return nil, err
	}
	if err := r.add(l); err != nil {
		l.socket.discard()
		return nil, err
	}
	return l, nil
}

func (r *Relay) newListener(socket *acceptor, loops int, name string, b Balancer) *Listener {
	l := &Listener{
		relay: r, socket: socket, name: name, balancer: b,
		stats: make([]atomic.Pointer[counters], loops),
	}
	l.Configure(Settings{})
	return l
}

// log is where to log. It is made anew, since most of tens of thousands of listeners never have anything to say.
func (l *Listener) log() *logrus.Entry {
	return l.relay.cfg.Log.WithFields(logrus.Fields{"frontend": l.socket.addr.String(), "service": l.name})
}

// Addr returns the address that is listened on.
func (l *Listener) Addr() netip.AddrPort { return l.socket.addr }

// Stats returns the counters.
func (l *Listener) Stats() Stats {
	var sum Stats
	for i := range l.stats {
		if c := l.stats[i].Load(); c != nil {
			sum = sum.Add(c.snapshot())
		}
	}
	return sum
}

// countersOf returns the counters that lp, which is the caller, counts in.
func (l *Listener) countersOf(lp *tcpLoop) *counters {
	c := l.stats[lp.index].Load()
	if c == nil {
		c = new(counters)
		l.stats[lp.index].Store(c)
	}
	return c
}

// SetOpen decides whether clients are accepted or refused. While refused, the port stays bound and the kernel answers
// every SYN with a reset; connections that are live go on. EADDRINUSE, when opening, means that another process has
// taken the port meanwhile. On a shared socket it does nothing, since that is open to the clients of others: they have to
// be led elsewhere, and those that still come are reset for want of a backend.
func (l *Listener) SetOpen(open bool) error {
	if l.share != nil {
		return nil
	}
	return l.socket.setOpen(open)
}

// Serve begins to accept connections. It does not wait for them. A shared socket is served by itself.
func (l *Listener) Serve() {
	if l.share == nil {
		l.socket.loop.do(l.socket.join)
	}
}

// Close stops listening. Connections that are live go on and end by themselves or by the Relay's Shutdown. It waits for the
// loop, so that the address is free when it returns.
func (l *Listener) Close() error {
	l.shut()
	<-l.closed()
	return nil
}

// shut begins to close.
func (l *Listener) shut() {
	if l.share == nil {
		l.socket.shut()
	} else {
		l.share.shut(l)
	}
}

// closed tells the end of that.
func (l *Listener) closed() <-chan struct{} {
	if l.share == nil {
		return l.socket.closed
	}
	return l.share.closed
}
