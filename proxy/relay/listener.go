package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// backlog is the longest accept queue asked for; the kernel caps it at net.core.somaxconn.
const backlog = 65535

// Listener is one listening socket and the connections that came in through it.
type Listener struct {
	relay    *Relay
	tcp      *net.TCPListener
	raw      syscall.RawConn
	balancer Balancer
	log      *logrus.Entry
	stats    counters
	release  func()          // gives back what chargeListener took
	stop     context.Context // ends when the listener is closed
	cancel   context.CancelFunc

	mu       sync.Mutex // guards what follows
	open     bool
	reopened chan struct{} // closed when open becomes true or the listener is closed
	live     map[*session]struct{}
	serving  bool
	cutting  bool // reset was called: nothing may become live any more
}

// Listen binds addr and listens, open. name is for logs. Nothing is accepted until Serve is called. The port has to be
// given: one that the kernel chose would be lost by SetOpen(false), for lack of SOCK_BINDPORT_LOCK (tcp_set_state). The
// error is the kernel's (EADDRINUSE, EACCES), ErrShutdown, or says that no file descriptors are left.
func (r *Relay) Listen(addr netip.AddrPort, name string, b Balancer) (*Listener, error) {
	if addr.Port() == 0 {
		return nil, fmt.Errorf("listening on %s: a port is needed", addr)
	}
	release, err := r.chargeListener()
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", addr, err)
	}
	network := "tcp6" // explicit: "tcp" would listen on both families
	if addr.Addr().Is4() {
		network = "tcp4"
	}
	lc := net.ListenConfig{Control: r.listenOptions(addr), KeepAlive: -1}
	lc.SetMultipathTCP(false)
	nl, err := lc.Listen(context.Background(), network, addr.String())
	if err != nil {
		release()
		return nil, err
	}
	l := &Listener{
		release:  release,
		relay:    r,
		tcp:      nl.(*net.TCPListener),
		balancer: b,
		log:      r.cfg.Log.WithFields(logrus.Fields{"frontend": nl.Addr().String(), "service": name}),
		open:     true,
		reopened: make(chan struct{}),
		live:     map[*session]struct{}{},
	}
	l.stop, l.cancel = context.WithCancel(context.Background())
	if l.raw, err = l.tcp.SyscallConn(); err == nil {
		err = r.add(l)
	}
	if err != nil {
		nl.Close()
		release()
		return nil, err
	}
	return l, nil
}

// Addr returns the address that is listened on.
func (l *Listener) Addr() netip.AddrPort { return l.tcp.Addr().(*net.TCPAddr).AddrPort() }

// Stats returns the counters.
func (l *Listener) Stats() Stats { return l.stats.snapshot() }

// SetOpen decides whether clients are accepted or refused. While refused, the port stays bound and the kernel answers
// every SYN with a reset; connections that are live go on. EADDRINUSE, when opening, means that another process has
// taken the port meanwhile.
func (l *Listener) SetOpen(open bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == open || l.stop.Err() != nil {
		return nil
	}
	var err error
	if cerr := l.raw.Control(func(fd uintptr) { err = setListening(int(fd), open) }); cerr != nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("listening on %s: %w", l.Addr(), err)
	}
	l.open = open
	if open {
		close(l.reopened)
	} else {
		l.reopened = make(chan struct{})
	}
	return nil
}

// setListening ends listening by shutdown(2), which keeps the socket bound, and resumes it by listen(2). A socket that
// is bound but not listening would share its port with others that set SO_REUSEADDR (inet_csk_bind_conflict), so it
// goes without the option meanwhile. With it, a listener binds in spite of connections that its predecessor left.
func setListening(fd int, open bool) error {
	if open {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
		err := unix.Listen(fd, backlog)
		if err != nil {
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
		}
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0); err != nil {
		return err
	}
	return unix.Shutdown(fd, unix.SHUT_RD)
}

// Close stops listening. Connections that are live go on and end by themselves or by the Relay's Shutdown.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stop.Err() != nil {
		return nil
	}
	l.cancel()
	err := l.tcp.Close()
	l.release()
	l.forgetIfDone()
	return err
}

// Serve accepts connections until Close. It is called once, by the goroutine that is to be the accept loop.
func (l *Listener) Serve() {
	if !l.begin() {
		return
	}
	defer l.relay.running.Done()
	defer l.served()
	var retry backoff
	for {
		conn, err := l.tcp.AcceptTCP()
		switch {
		case err == nil:
			retry.reset()
			l.stats.accepted.Add(1)
			waited, admitted := l.admit()
			if !admitted {
				l.stats.failed.Add(1)
				abort(conn)
				return
			}
			l.startConn(conn, waited)
		case l.stop.Err() != nil:
			return
		case errors.Is(err, unix.EINVAL): // not listening: closed by SetOpen
			select {
			case <-l.whenOpen():
			case <-l.stop.Done():
				return
			}
		case errors.Is(err, unix.ECONNABORTED): // the client left the queue by itself
		default:
			l.stats.acceptErrors.Add(1)
			l.relay.complain(err, "cannot accept connections, retrying")
			retry.wait(l.stop)
		}
	}
}

func (l *Listener) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stop.Err() != nil || l.serving {
		return false
	}
	l.serving = true
	l.relay.running.Add(1)
	return true
}

// served lets the Relay forget the listener: no connection can become live any more.
func (l *Listener) served() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serving = false
	l.forgetIfDone()
}

func (l *Listener) whenOpen() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reopened
}

// admit waits until there are file descriptors for one more connection. The semaphore serves listeners first come,
// first served, one waiting connection each, so that a flood on one of them does not starve the others.
func (l *Listener) admit() (waited, admitted bool) {
	if l.relay.fds.TryAcquire(fdsPerConnection) {
		return false, true
	}
	l.stats.fdWaits.Add(1)
	l.relay.complain(errNoFDs, "connections wait for others to end")
	return true, l.relay.fds.Acquire(l.stop, fdsPerConnection) == nil
}

func (l *Listener) startConn(conn *net.TCPConn, waited bool) {
	s := newSession(l, conn)
	s.waited = waited
	l.stats.active.Add(1)
	l.relay.running.Add(1)
	l.mu.Lock()
	l.live[s] = struct{}{}
	if l.cutting {
		s.cut()
	}
	l.mu.Unlock()
	go s.serveConn()
}

// endConn gives back what startConn and admit took.
func (l *Listener) endConn(s *session) {
	l.mu.Lock()
	delete(l.live, s)
	l.forgetIfDone()
	l.mu.Unlock()
	l.stats.active.Add(-1)
	l.relay.fds.Release(fdsPerConnection)
	l.relay.running.Done()
}

// forgetIfDone runs with mu held.
func (l *Listener) forgetIfDone() {
	if l.stop.Err() != nil && !l.serving && len(l.live) == 0 {
		l.relay.remove(l)
	}
}

// reset cuts all live connections and returns their number.
func (l *Listener) reset() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cutting = true
	for s := range l.live {
		s.cut()
	}
	return len(l.live)
}
