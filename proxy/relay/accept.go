package relay

import (
	"context"
	"net/netip"

	"golang.org/x/sys/unix"
)

// acceptBatch is how many connections are accepted from one listener before others have their turn.
const acceptBatch = 16

// event is told that there are connections in the accept queue, or that SetOpen has ended listening.
func (l *Listener) event(uint32) { l.accept() }

// resume goes on after the others' turn.
func (l *Listener) resume() {
	l.queued = false
	l.accept()
}

// alarm tries again.
func (l *Listener) alarm() {
	if l.slot < 0 {
		l.join()
		return
	}
	l.accept()
}

// accept empties the accept queue, as it has to: the next edge comes with the next connection only. However many of those
// come, one batch a turn is what new connections may take from those that are being served.
func (l *Listener) accept() {
	if l.queued || l.waiting != nil || l.timer.set || l.slot < 0 {
		return
	}
	defer l.loop.contain()
	count := l.countersOf(l.loop)
	for range acceptBatch {
		if !l.mayAccept() {
			return
		}
		fd, client, errno := acceptRaw(l.fd)
		switch errno {
		case 0:
			l.retry.reset()
			count.accepted.Add(1)
			if !l.admit(count, fd, client) {
				return
			}
		case unix.EAGAIN:
			l.jammed = false
			return
		case unix.EINVAL: // closed by SetOpen; when it opens again, the first connection makes an event
			return
		case unix.EINTR, unix.ECONNABORTED: // the client left the queue by itself
		default:
			count.acceptErrors.Add(1)
			l.jammed = true
			l.relay.complain(errno, "cannot accept connections, retrying")
			l.loop.wheel.set(&l.timer, l.loop.now+l.retry.next())
			return
		}
	}
	l.queued = true
	l.loop.more = append(l.loop.more, l)
}

// admit begins a connection if there are file descriptors for it. Otherwise the listener waits for them. The semaphore
// serves listeners first come, first served, one waiting connection each, so that a flood on one of them does not starve
// the others.
func (l *Listener) admit(count *counters, fd int, client netip.Addr) bool {
	r := l.relay
	if !r.fds.TryAcquire(fdsPerConnection) {
		l.loop.pipes.close(r)
		if !r.fds.TryAcquire(fdsPerConnection) {
			count.fdWaits.Add(1)
			r.complain(errNoFDs, "connections wait for others to end")
			ctx, cancel := context.WithCancel(context.Background())
			l.waiting, l.jammed = &arrival{fd: fd, client: client, cancel: cancel}, true
			r.looping.Go(func() { l.await(ctx, l.waiting) })
			return false
		}
	}
	l.loop.place(l, fd, client, l.jammed)
	return true
}

// await is the goroutine of a connection that waits for file descriptors. The listener owns it and ends it by cancel.
func (l *Listener) await(ctx context.Context, w *arrival) {
	fds := l.relay.fds
	if fds.Acquire(ctx, fdsPerConnection) != nil {
		return
	}
	if !l.loop.do(func() { l.admitted(w) }) {
		fds.Release(fdsPerConnection)
	}
}

// admitted begins the connection that has waited, unless the listener has been closed meanwhile.
func (l *Listener) admitted(w *arrival) {
	w.cancel() // frees the context
	if l.waiting != w {
		l.relay.fds.Release(fdsPerConnection)
		return
	}
	l.waiting = nil
	l.loop.place(l, w.fd, w.client, true)
	l.accept()
}
