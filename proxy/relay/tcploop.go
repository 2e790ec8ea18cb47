package relay

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// bufferSize is what is read from a socket at a time.
const bufferSize = 64 << 10

// tcpLoop is the event loop of some listeners and connections. Its goroutine owns them: nothing here is locked but the
// poller's queue.
//
// Sockets are edge-triggered. What an edge has announced is remembered in flags (end.ready, end.room), and what has not
// been dealt with for the sake of the others waits in more.
type tcpLoop struct {
	poller
	relay    *Relay
	peers    []*tcpLoop    // all loops
	index    int           // of this one
	now      time.Duration // of this turn, on the relay's clock
	wheel    wheel
	more     []resumer
	resumed  []resumer // the previous turn's, to use its memory again
	spare    []*conn   // records to use again
	searches []*search // to use again
	dead     []*conn   // those that ended in this turn: events may still lie before us
	pipes    pipes
	live     int // connections
	orphans  int
	ended    chan struct{}
	done     bool // stop was answered

	paused bool          // no connection may begin or be given to another loop
	held   []*acceptor   // those that would have accepted meanwhile
	idle   chan struct{} // closed when paused and without connections; nil: nobody waits

	load    load
	resting atomic.Bool // waiting for events; read, and cleared, by other loops

	buf [bufferSize]byte
}

// resumer is what has been interrupted for the sake of others.
type resumer interface{ resume() }

func newTCPLoop(r *Relay, index int) (*tcpLoop, error) {
	lp := &tcpLoop{relay: r, index: index, ended: make(chan struct{})}
	return lp, lp.init()
}

// run is the goroutine of the loop. The Relay owns it and ends it by stop.
func (lp *tcpLoop) run() {
	defer close(lp.ended)
	runtime.LockOSThread()
	lp.now = lp.relay.clock()
	for !lp.done {
		if errno := lp.turn(); errno != 0 && errno != unix.EINTR {
			lp.relay.cfg.Log.WithError(errno).Error("event loop failed, its connections are cut")
			lp.done = true
		}
	}
	lp.close(lp.call)
	lp.cut()
	lp.pipes.close(lp.relay)
}

// turn waits for events, unless there is more to do, and handles them.
func (lp *tcpLoop) turn() unix.Errno {
	n, errno := lp.next()
	lp.now = lp.relay.clock()
	for i := range n {
		lp.handle(&lp.events[i])
	}
	lp.resume()
	lp.expire()
	lp.bury()
	lp.yield(lp.now)
	return errno
}

func (lp *tcpLoop) next() (int, unix.Errno) {
	if len(lp.more) > 0 {
		return lp.poll()
	}
	if lp.live == 0 && len(lp.pipes.spare) > 0 {
		lp.pipes.close(lp.relay) // when it is quiet nothing is held
	}
	lp.resting.Store(true)
	n, errno := lp.wait(lp.relay.clock(), lp.wheel.wake())
	lp.resting.Store(false)
	return n, errno
}

func (lp *tcpLoop) handle(e *unix.EpollEvent) {
	if e.Fd == bellSlot {
		lp.answerBell(lp.call)
	} else if s := lp.sourceOf(e); s != nil {
		s.event(e.Events)
	}
}

func (lp *tcpLoop) resume() {
	batch := lp.more
	lp.more = lp.resumed[:0]
	for _, r := range batch {
		r.resume()
	}
	clear(batch)
	lp.resumed = batch
}

func (lp *tcpLoop) expire() {
	for t := lp.wheel.expired(lp.now); t != nil; t = lp.wheel.expired(lp.now) {
		t.owner.alarm()
	}
}

// bury gives the records of ended connections back.
func (lp *tcpLoop) bury() {
	const most = 1024
	for i, c := range lp.dead {
		if len(lp.spare) < most {
			lp.spare = append(lp.spare, c)
		}
		lp.dead[i] = nil
	}
	lp.dead = lp.dead[:0]
	if lp.idle != nil && lp.live == 0 {
		close(lp.idle)
		lp.idle = nil
	}
}

// call runs a request from outside.
func (lp *tcpLoop) call(f func()) {
	defer lp.contain()
	f()
}

// contain, when deferred, keeps a fault outside of connections, which contain their own, from ending the process.
func (lp *tcpLoop) contain() {
	if p := recover(); p != nil {
		lp.relay.cfg.Log.WithFields(logrus.Fields{"panic": p, "stack": string(debug.Stack())}).Error("accepting connections panicked, please report it")
	}
}

// cut ends all connections by a reset and returns their number.
func (lp *tcpLoop) cut() (n int) {
	for i := range lp.slots {
		switch s := lp.slots[i].source.(type) {
		case *end:
			if s.conn.state != ended {
				s.conn.cutSafely()
				n++
			}
		case *orphan:
			s.end(context.Canceled)
		}
	}
	lp.bury()
	return n
}

// drain closes the returned channel when the last connection has ended. Every loop must have been told to pause before.
func (lp *tcpLoop) drain() <-chan struct{} {
	idle := make(chan struct{})
	if !lp.do(func() { lp.idle = idle }) {
		close(idle) // the loop has ended, and its connections with it
	}
	return idle
}

// ask has f run by the loop and waits for it. If the loop has ended, nothing happens.
func (lp *tcpLoop) ask(f func()) {
	answered := make(chan struct{})
	if lp.do(func() { defer close(answered); f() }) {
		<-answered
	}
}

func (lp *tcpLoop) stop() {
	lp.do(func() { lp.done = true })
}
