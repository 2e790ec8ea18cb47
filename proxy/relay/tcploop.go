package relay

import (
	"context"
	"errors"
	"os"
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
	armed    time.Duration // when the wait ends at the latest; 0: not set
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

	draining bool          // no connection may be given to another loop any more
	idle     chan struct{} // closed when draining and without connections; nil: nobody waits

	busySince time.Duration // when it last rested
	load      load
	resting   atomic.Bool // waiting for events; read, and cleared, by other loops

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
	for !lp.done {
		switch err := lp.raw.Read(lp.turns); {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			lp.armed = 0
			lp.file.SetReadDeadline(time.Time{})
		default:
			lp.relay.cfg.Log.WithError(err).Error("event loop failed, its connections are cut")
			lp.done = true
		}
	}
	lp.close(lp.call)
	lp.cut()
	lp.pipes.close(lp.relay)
}

// turns handles events until there are none. false: wait for more; true: the loop is to end.
func (lp *tcpLoop) turns(uintptr) bool {
	lp.resting.Store(false)
	lp.now = lp.relay.clock()
	lp.busySince = lp.now
	for {
		n, errno := lp.poll()
		if errno != 0 && errno != unix.EINTR {
			lp.relay.cfg.Log.WithError(errno).Error("event loop failed, its connections are cut")
			lp.done = true
			return true
		}
		lp.now = lp.relay.clock()
		for i := range max(n, 0) {
			lp.handle(&lp.events[i])
		}
		lp.resume()
		lp.expire()
		lp.bury()
		if lp.done {
			return true
		}
		if errno == 0 && n < len(lp.events) && len(lp.more) == 0 {
			if lp.live == 0 && len(lp.pipes.spare) > 0 {
				lp.pipes.close(lp.relay) // when it is quiet nothing is held
			}
			lp.arm()
			lp.resting.Store(true)
			return false
		}
	}
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

// arm makes the wait end when the first timer is due. An end that is earlier than needed stays: to set it costs more than
// to wake for nothing now and then, since nearly all timers are unset again before they are due.
func (lp *tcpLoop) arm() {
	at, ok := lp.wheel.wake()
	if !ok || lp.armed != 0 && lp.armed <= at {
		return
	}
	lp.armed = at
	lp.file.SetReadDeadline(time.Now().Add(at - lp.relay.clock()))
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

// drain closes the returned channel when the last connection has ended. Every loop must have been told not to give
// connections away before.
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
