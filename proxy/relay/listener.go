package relay

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// backlog is the longest accept queue asked for; the kernel caps it at net.core.somaxconn.
const backlog = 65535

// Listener is one listening socket. One loop accepts from it, see place.go for where connections go from there.
type Listener struct {
	relay    *Relay
	loop     *tcpLoop
	fd       int
	addr     netip.AddrPort
	name     string
	balancer Balancer
	log      *logrus.Entry
	stats    []atomic.Pointer[counters] // by loop, made when first needed
	settings atomic.Pointer[Settings]   // never nil, complete
	retained atomic.Pointer[retained]   // nil: all backends
	release  func()                     // gives back what chargeListener took
	closed   chan struct{}
	ending   sync.Once

	mu       sync.Mutex // guards what follows
	open     bool
	isClosed bool

	// The loop's own:
	slot    int32 // -1: not served
	waiting *arrival
	queued  bool // in loop.more
	held    bool // there were too many connections at the last look
	jammed  bool // what is in the accept queue has waited there, so that clients may be gone
	retry   backoff
	timer   timer // of the next retry
}

// Listen binds addr and listens, open. name is for logs. Nothing is accepted until Serve is called. The port has to be
// given: one that the kernel chose would be lost by SetOpen(false), for lack of SOCK_BINDPORT_LOCK (tcp_set_state). The
// error is the kernel's (EADDRINUSE, EACCES), ErrShutdown, or says that no file descriptors are left.
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
	fd, err := bindTCP(addr, &r.cfg)
	if err != nil {
		release()
		return nil, fmt.Errorf("listening on %s: %w", addr, os.NewSyscallError("bind", err))
	}
	l := &Listener{
		relay: r, loop: loop, fd: fd, addr: addr, name: name, balancer: b, release: release, open: true, slot: -1,
		log:    r.cfg.Log.WithFields(logrus.Fields{"frontend": addr.String(), "service": name}),
		stats:  make([]atomic.Pointer[counters], loops),
		closed: make(chan struct{}),
	}
	l.timer.owner = l
	l.Configure(Settings{})
	if err := r.add(l); err != nil {
		unix.Close(fd)
		release()
		return nil, err
	}
	return l, nil
}

// Addr returns the address that is listened on.
func (l *Listener) Addr() netip.AddrPort { return l.addr }

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
// taken the port meanwhile.
func (l *Listener) SetOpen(open bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == open || l.isClosed {
		return nil
	}
	if err := setListening(l.fd, open); err != nil {
		return fmt.Errorf("listening on %s: %w", l.addr, err)
	}
	l.open = open
	return nil
}

// Serve begins to accept connections. It does not wait for them.
func (l *Listener) Serve() { l.loop.do(l.join) }

// join runs in the loop, like everything below.
func (l *Listener) join() {
	l.mu.Lock()
	closed := l.isClosed
	l.mu.Unlock()
	if closed || l.slot >= 0 {
		return
	}
	slot, err := l.loop.register(l.fd, unix.EPOLLIN|unix.EPOLLET, l)
	if err != nil {
		// Out of kernel memory, or of what epoll grants a user (max_user_watches).
		l.relay.complain(err, "cannot wait for connections, retrying")
		l.loop.wheel.set(&l.timer, l.loop.now+l.retry.next())
		return
	}
	l.slot = slot
}

// Close stops listening. Connections that are live go on and end by themselves or by the Relay's Shutdown. It waits for the
// loop, so that the address is free when it returns.
func (l *Listener) Close() error {
	l.mu.Lock()
	l.isClosed = true // keeps SetOpen from using the descriptor from now on
	l.mu.Unlock()
	if !l.loop.do(l.end) {
		<-l.loop.ended
		l.end() // if the loop has not done it
	}
	<-l.closed
	return nil
}

// end runs in the loop, or after it.
func (l *Listener) end() {
	l.ending.Do(func() {
		defer close(l.closed)
		if l.slot >= 0 {
			l.loop.release(l.slot)
			l.slot = -1 // it may still be in loop.more
		}
		l.loop.wheel.unset(&l.timer)
		closeRaw(l.fd)
		if w := l.waiting; w != nil {
			l.waiting = nil
			w.cancel()
			l.countersOf(l.loop).failed.Add(1)
			abort(w.fd)
		}
		l.release()
		l.relay.remove(l)
	})
}

// arrival is an accepted connection that waits for its share of file descriptors, and holds back those behind it.
type arrival struct {
	fd     int
	client netip.Addr
	cancel context.CancelFunc
}
