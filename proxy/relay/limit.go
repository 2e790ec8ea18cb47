package relay

import (
	"container/list"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Limit is how many connections some listeners may have together, those of one Service port, and the queue of those that
// have to wait: for others to end, or for a backend below its own limit. It counts from when listeners are given it
// (Settings.Limit). The zero value has no limit and no queue. All methods may be called at any time.
type Limit struct {
	waiting atomic.Int64 // tickets

	mu      sync.Mutex // guards what follows
	most    int
	queue   int
	timeout time.Duration
	used    int
	slots   list.List               // tickets of those that wait for a slot
	full    map[Balancer]*list.List // ... that have one, and wait for a backend; served by serveFull
}

const defaultQueueTimeout = 5 * time.Second

// ticket is one connection's place in a queue. It is over when its connection no longer holds it.
type ticket struct {
	conn  *conn
	loop  *tcpLoop
	tried []netip.AddrPort // of those that wait for a backend
	gone  chan struct{}    // closed when it is out of its queue
	line  *list.List
	place *list.Element
}

// Set bounds the connections, for UDP the sessions; 0 is no bound. Those beyond it are refused, but for so many of TCP
// that wait for a slot or a backend, each for no longer than timeout; 0: 5s. Connections that there are stay.
func (l *Limit) Set(connections, queue int, timeout time.Duration) {
	if timeout == 0 {
		timeout = defaultQueueTimeout
	}
	l.mu.Lock()
	l.most, l.queue, l.timeout = connections, queue, timeout
	next := l.next()
	l.mu.Unlock()
	l.call(next)
}

// LimitStatus is what a Limit is and how much of it is used.
type LimitStatus struct {
	Max     int           `json:"max"`     // connections; 0: no bound
	Used    int           `json:"used"`    // connections that count
	Waiting int           `json:"waiting"` // connections in the queue
	Queue   int           `json:"queue"`   // how many there may be
	Timeout time.Duration `json:"timeout"` // nanoseconds that each may wait
}

// Status returns the present state.
func (l *Limit) Status() LimitStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return LimitStatus{Max: l.most, Used: l.used, Waiting: int(l.waiting.Load()), Queue: l.queue, Timeout: l.timeout}
}

// take takes a slot if there is one and nobody waits for it.
func (l *Limit) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.most > 0 && (l.used >= l.most || l.slots.Len() > 0) {
		return false
	}
	l.used++
	return true
}

// give gives a slot back, to who has waited for the longest.
func (l *Limit) give() {
	l.mu.Lock()
	l.used--
	next := l.next()
	l.mu.Unlock()
	l.call(next)
}

// next gives the free slots to those that wait. The caller has to call them.
func (l *Limit) next() (next []*ticket) {
	for l.slots.Len() > 0 && (l.most <= 0 || l.used < l.most) {
		t := l.slots.Front().Value.(*ticket)
		l.remove(t)
		l.used++
		next = append(next, t)
	}
	return next
}

func (l *Limit) call(next []*ticket) {
	for _, t := range next {
		if !t.loop.do(func() { t.conn.admitted(l, t) }) {
			l.give()
		}
	}
}

// waitForSlot returns a ticket, or nil if the queue is full. The connection has a slot if its loop is told so.
func (l *Limit) waitForSlot(c *conn) (*ticket, time.Duration) {
	l.mu.Lock()
	t := l.join(c, &l.slots)
	next, timeout := l.next(), l.timeout // one may have become free since
	l.mu.Unlock()
	l.call(next)
	return t, timeout
}

// waitForBackend returns a ticket, or nil if the queue is full. The connection is called when it may pick.
func (l *Limit) waitForBackend(c *conn) (*ticket, time.Duration) {
	r, b := c.listener.relay, c.listener.balancer
	l.mu.Lock()
	defer l.mu.Unlock()
	line, served := l.full[b]
	if !served {
		line = list.New()
	}
	t := l.join(c, line)
	if t == nil {
		return nil, 0
	}
	t.tried = slices.Clone(c.search.tried)
	if !served {
		if l.full == nil {
			l.full = map[Balancer]*list.List{}
		}
		l.full[b] = line
		r.looping.Go(func() { l.serveFull(b) })
	}
	return t, l.timeout
}

func (l *Limit) join(c *conn, line *list.List) *ticket {
	if l.waiting.Load() >= int64(l.queue) {
		return nil
	}
	l.waiting.Add(1)
	t := &ticket{conn: c, loop: c.loop, gone: make(chan struct{}), line: line}
	t.place = line.PushBack(t)
	return t
}

// leave gives a place up, if it is still one.
func (l *Limit) leave(t *ticket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(t)
}

func (l *Limit) remove(t *ticket) {
	if t.place != nil {
		t.line.Remove(t.place)
		t.place = nil
		l.waiting.Add(-1)
		close(t.gone)
	}
}

// waitsForBackend reports whether a connection that is not called should rather queue.
func (l *Limit) waitsForBackend(b Balancer) bool {
	if l.waiting.Load() == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	line := l.full[b]
	return line != nil && line.Len() > 0
}

// serveFull is the goroutine that waits for b's backends in the place of all connections that do. It calls the first one
// and ends when there is none. The Relay owns it: when the loops end, so do the connections.
func (l *Limit) serveFull(b Balancer) {
	for t := l.head(b); t != nil; t = l.head(b) {
		if freed := b.Freed(t.tried); freed != nil {
			select {
			case <-freed:
			case <-t.gone:
				continue
			}
		}
		called := make(chan struct{})
		if t.loop.do(func() { defer close(called); t.conn.called(t) }) {
			<-called
		} else {
			<-t.gone
		}
	}
}

func (l *Limit) head(b Balancer) *ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	if first := l.full[b].Front(); first != nil {
		return first.Value.(*ticket)
	}
	delete(l.full, b)
	return nil
}
