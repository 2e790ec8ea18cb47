package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

var errNoFDs = errors.New("all file descriptors are in use: raise the limit (ulimit -n)")

// ErrTooManyListeners means that one more listening socket would leave too few file descriptors for connections.
var ErrTooManyListeners = errors.New("too many listeners")

// listenersError is that, with the numbers.
type listenersError struct{ listeners, fds int }

func (e listenersError) Error() string {
	return fmt.Sprintf("%d listeners are as many as a limit of %d file descriptors allows: raise it (ulimit -n)", e.listeners, e.fds)
}

func (listenersError) Is(target error) bool { return target == ErrTooManyListeners }

// chargeListener accounts for one more listening socket of those that there may be. Only a number of listeners that would
// leave too little for connections is an error.
func (r *Relay) chargeListener() (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bound >= r.maxListeners {
		return nil, listenersError{r.bound, r.cfg.MaxFDs}
	}
	r.bound++
	give := r.chargeSocket()
	return func() {
		give()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.bound--
	}, nil
}

// chargeSocket accounts for one more listening socket. They come before connections: when all descriptors are taken by
// connections, the socket opens all the same and its share is kept back from those that end next. So a flood on one Service
// does not keep another from opening.
func (r *Relay) chargeSocket() (release func()) {
	if r.fds.TryAcquire(fdsPerConnection) {
		return func() { r.fds.Release(fdsPerConnection) }
	}
	ctx, cancel := context.WithCancel(context.Background())
	taken := make(chan bool, 1)
	go func() { taken <- r.fds.Acquire(ctx, fdsPerConnection) == nil }()
	return func() {
		cancel()
		if <-taken {
			r.fds.Release(fdsPerConnection)
		}
	}
}

// complain logs a shortage, at most once a second for all listeners.
func (r *Relay) complain(err error, message string) {
	now := time.Now().UnixNano()
	if last := r.complained.Load(); now-last >= int64(time.Second) && r.complained.CompareAndSwap(last, now) {
		r.cfg.Log.WithError(err).Warn(message)
	}
}

// backoff spaces out retries when the process or the machine is out of something. The zero value is ready.
type backoff struct {
	delay time.Duration
}

func (b *backoff) reset() { b.delay = 0 }

// next returns how long to wait before the next retry.
func (b *backoff) next() time.Duration {
	b.delay = min(max(2*b.delay, 5*time.Millisecond), time.Second)
	return b.delay
}

// isShortage reports that an error is about what the process or the machine is out of.
func isShortage(err error) bool {
	for _, e := range []error{errNoFDs, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ENOSPC} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
