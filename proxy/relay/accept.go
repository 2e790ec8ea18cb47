package relay

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// acceptBatch is how many connections are accepted from one socket before others have their turn.
const acceptBatch = 16

// acceptor is a listening socket: that of one Listener, or one that several share. One loop accepts from it, see place.go for
// where connections go from there.
type acceptor struct {
	relay   *Relay
	loop    *tcpLoop
	fd      int
	addr    netip.AddrPort
	owner   *Listener       // nil: it is shared
	shared  *SharedListener // nil: it has an owner
	release func()          // gives back what was charged for the socket
	retire  func()          // takes it out of the Relay's books
	closed  chan struct{}
	ending  sync.Once
	// assigned means that connections have the destination that counts as their own address.
	assigned bool

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
	// routes tell whose the connections to each destination are; nil: all are the owner's.
	routes  map[netip.AddrPort]*Listener
	freeing bool // routes are to be nil when the accept queue is empty
}

// arrival is an accepted connection that waits for its share of file descriptors, and holds back those behind it.
type arrival struct {
	listener *Listener
	fd       int
	client   netip.Addr
	cancel   context.CancelFunc
}

// bind begins to listen at a.addr. What was charged for the socket is given back if that fails.
func (a *acceptor) bind(r *Relay) (err error) {
	if a.fd, err = bindTCP(a.addr, &r.cfg); err != nil {
		a.release()
		return fmt.Errorf("listening on %s: %w", a.addr, os.NewSyscallError("bind", err))
	}
	a.relay, a.open, a.slot, a.closed = r, true, -1, make(chan struct{})
	a.timer.owner = a
	return nil
}

// discard undoes bind before anything was served.
func (a *acceptor) discard() {
	unix.Close(a.fd)
	a.release()
}

func (a *acceptor) setOpen(open bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == open || a.isClosed {
		return nil
	}
	if err := setListening(a.fd, open); err != nil {
		return fmt.Errorf("listening on %s: %w", a.addr, err)
	}
	a.open = open
	return nil
}

// shut begins to close; closed tells the end. The loop has to be waited for, so that the address is free then.
func (a *acceptor) shut() {
	a.mu.Lock()
	a.isClosed = true // keeps setOpen from using the descriptor from now on
	a.mu.Unlock()
	if !a.loop.do(a.end) {
		<-a.loop.ended
		a.end() // if the loop has not done it
	}
}

// join runs in the loop, like everything below but await.
func (a *acceptor) join() {
	a.mu.Lock()
	closed := a.isClosed
	a.mu.Unlock()
	if closed || a.slot >= 0 {
		return
	}
	slot, err := a.loop.register(a.fd, unix.EPOLLIN|unix.EPOLLET, a)
	if err != nil {
		// Out of kernel memory, or of what epoll grants a user (max_user_watches).
		a.relay.complain(err, "cannot wait for connections, retrying")
		a.loop.wheel.set(&a.timer, a.loop.now+a.retry.next())
		return
	}
	a.slot = slot
}

// end runs in the loop, or after it.
func (a *acceptor) end() {
	a.ending.Do(func() {
		defer close(a.closed)
		if a.slot >= 0 {
			a.loop.release(a.slot)
			a.slot = -1 // it may still be in loop.more
		}
		a.loop.wheel.unset(&a.timer)
		closeRaw(a.fd)
		if a.waiting != nil {
			a.turnAway()
		}
		a.release()
		a.retire()
	})
}

// turnAway resets the connection that waits.
func (a *acceptor) turnAway() {
	w := a.waiting
	a.waiting = nil
	w.cancel()
	w.listener.countersOf(a.loop).failed.Add(1)
	abort(w.fd)
}

// counters are for what concerns no connection.
func (a *acceptor) counters() *counters {
	if a.owner != nil {
		return a.owner.countersOf(a.loop)
	}
	return &a.shared.count
}

// event is told that there are connections in the accept queue, or that setOpen has ended listening.
func (a *acceptor) event(uint32) { a.accept() }

// resume goes on after the others' turn.
func (a *acceptor) resume() {
	a.queued = false
	a.accept()
}

// alarm tries again.
func (a *acceptor) alarm() {
	if a.slot < 0 {
		a.join()
		return
	}
	a.accept()
}

// accept empties the accept queue, as it has to: the next edge comes with the next connection only. However many of those
// come, one batch a turn is what new connections may take from those that are being served.
func (a *acceptor) accept() {
	if a.queued || a.waiting != nil || a.timer.set || a.slot < 0 {
		return
	}
	if a.loop.paused {
		a.loop.held = append(a.loop.held, a)
		return
	}
	defer a.loop.contain()
	for range acceptBatch {
		if !a.mayAccept() {
			return
		}
		fd, client, errno := acceptRaw(a.fd)
		switch errno {
		case 0:
			a.retry.reset()
			if !a.admit(fd, client) {
				return
			}
		case unix.EAGAIN:
			a.jammed = false
			if a.freeing {
				a.routes, a.freeing = nil, false
			}
			return
		case unix.EINVAL: // closed by setOpen; when it opens again, the first connection makes an event
			return
		case unix.EINTR, unix.ECONNABORTED: // the client left the queue by itself
		default:
			a.counters().acceptErrors.Add(1)
			a.jammed = true
			a.relay.complain(errno, "cannot accept connections, retrying")
			a.loop.wheel.set(&a.timer, a.loop.now+a.retry.next())
			return
		}
	}
	a.queued = true
	a.loop.more = append(a.loop.more, a)
}

// admit begins a connection if there are file descriptors for it. Otherwise the socket waits for them. The semaphore
// serves sockets first come, first served, one waiting connection each, so that a flood on one of them does not starve
// the others. Listeners that share a socket wait together.
func (a *acceptor) admit(fd int, client netip.Addr) bool {
	r, l := a.relay, a.owner
	if a.routes != nil {
		if l = a.listenerOf(fd, client); l == nil {
			a.refuseStray(fd, client)
			return true
		}
	}
	count := l.countersOf(a.loop)
	count.accepted.Add(1)
	if a.shared != nil && !l.mayHaveMore() {
		count.limited.Add(1)
		l.complainOfShare("new connections of a Service that shares a proxy port are reset")
		abort(fd)
		return true
	}
	if !r.fds.TryAcquire(fdsPerConnection) {
		a.loop.pipes.close(r)
		if !r.fds.TryAcquire(fdsPerConnection) {
			count.fdWaits.Add(1)
			r.complain(errNoFDs, "connections wait for others to end")
			ctx, cancel := context.WithCancel(context.Background())
			w := &arrival{listener: l, fd: fd, client: client, cancel: cancel}
			a.waiting, a.jammed = w, true
			r.looping.Go(func() { a.await(ctx, w) })
			return false
		}
	}
	a.loop.place(l, fd, client, a.jammed)
	return true
}

// await is the goroutine of a connection that waits for file descriptors. The acceptor owns it and ends it by cancel.
func (a *acceptor) await(ctx context.Context, w *arrival) {
	fds := a.relay.fds
	if fds.Acquire(ctx, fdsPerConnection) != nil {
		return
	}
	if !a.loop.do(func() { a.admitted(w) }) {
		fds.Release(fdsPerConnection)
	}
}

// admitted begins the connection that has waited, unless its listener has been closed meanwhile.
func (a *acceptor) admitted(w *arrival) {
	w.cancel() // frees the context
	if a.waiting != w {
		a.relay.fds.Release(fdsPerConnection)
		return
	}
	a.waiting = nil
	a.loop.place(w.listener, w.fd, w.client, true)
	a.accept()
}
