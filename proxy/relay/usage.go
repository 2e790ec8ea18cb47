package relay

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// Usage is how much there is, and may be, of what all listeners share.
type Usage struct {
	Descriptors    int64 `json:"descriptors"` // of listeners and TCP connections
	MaxDescriptors int64 `json:"maxDescriptors"`
	Connections    int64 `json:"connections"` // of TCP
	MaxConnections int64 `json:"maxConnections"`
	Sessions       int64 `json:"sessions"` // of UDP, a descriptor each
	MaxSessions    int64 `json:"maxSessions"`
	Listeners      int   `json:"listeners"`
	MaxListeners   int   `json:"maxListeners"`
}

// Usage returns the present figures.
func (r *Relay) Usage() Usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Usage{
		Descriptors: r.fds.used.Load(), MaxDescriptors: r.fds.most,
		Connections: r.live.Load(), MaxConnections: r.maxConnections(),
		Sessions: r.udp.sessions.Load(), MaxSessions: r.udp.max,
		Listeners: r.bound, MaxListeners: r.maxListeners,
	}
}

// Lag returns how long the slowest event loop takes to get round to a request that is made now. It is 0 without loops, and
// waits for patience at most.
func (r *Relay) Lag(patience time.Duration) time.Duration {
	r.mu.Lock()
	var loops []*poller
	for _, lp := range r.tcpLoops {
		loops = append(loops, &lp.poller)
	}
	for _, lp := range r.loops {
		loops = append(loops, &lp.poller)
	}
	r.mu.Unlock()
	if len(loops) == 0 {
		return 0
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, lp := range loops {
		answered := make(chan struct{})
		if !lp.do(func() { close(answered) }) {
			continue // it has ended
		}
		select {
		case <-answered:
		case <-ctx.Done():
			return patience
		}
	}
	return time.Since(began)
}

// descriptors are those that listeners and TCP connections may have.
type descriptors struct {
	semaphore *semaphore.Weighted
	most      int64
	used      atomic.Int64
}

func newDescriptors(most int64) *descriptors {
	return &descriptors{semaphore: semaphore.NewWeighted(most), most: most}
}

func (d *descriptors) TryAcquire(n int64) bool {
	ok := d.semaphore.TryAcquire(n)
	if ok {
		d.used.Add(n)
	}
	return ok
}

func (d *descriptors) Acquire(ctx context.Context, n int64) error {
	err := d.semaphore.Acquire(ctx, n)
	if err == nil {
		d.used.Add(n)
	}
	return err
}

func (d *descriptors) Release(n int64) {
	d.used.Add(-n)
	d.semaphore.Release(n)
}
