package relay

import (
	"runtime"
	"runtime/debug"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

const (
	batchSize = 32 // datagrams per recvmmsg(2) of a listener, and per sendmmsg(2) of replies
	replySize = 8  // replies taken from one session at a time, so that a busy one does not hold up the others
)

// udpLoop is the event loop of some listeners and all their sessions. Its goroutine owns them: nothing here is locked but
// the poller's queue.
//
// Sockets are level-triggered, and each is read once per turn, so that a flood on one of them delays the others by a batch
// only.
type udpLoop struct {
	poller
	relay *Relay

	in, out *batch
	queued  int          // replies in out
	replyTo *UDPListener // the listener that queued replies leave by
	now     time.Time    // of this turn
	tickAt  time.Time    // when to look for idle sessions; zero: not set
	members map[*UDPListener]struct{}
	ended   chan struct{}
	live    int  // sessions of all members
	done    bool // stop was answered
}

func newUDPLoop(r *Relay) (*udpLoop, error) {
	lp := &udpLoop{relay: r, in: newBatch(batchSize), out: newBatch(batchSize), members: map[*UDPListener]struct{}{}, ended: make(chan struct{})}
	return lp, lp.init()
}

// run is the goroutine of the loop. The Relay owns it and ends it by stop.
func (lp *udpLoop) run() {
	defer close(lp.ended)
	runtime.LockOSThread()
	lp.look()
	for !lp.done {
		if errno := lp.turn(); errno != 0 && errno != unix.EINTR {
			lp.relay.cfg.Log.WithError(errno).Error("event loop failed, UDP is not relayed any more")
			break
		}
	}
	lp.close(lp.call)
	for l := range lp.members {
		l.markClosed()
		lp.call(l.end)
	}
}

// turn waits for events and handles them. What a socket has left unread is announced again at once.
func (lp *udpLoop) turn() unix.Errno {
	var tick time.Duration
	if lp.live > 0 {
		if lp.tickAt.IsZero() {
			lp.tickAt = lp.now.Add(lp.tick())
		}
		tick = max(lp.tickAt.Sub(lp.relay.born), 1)
	}
	n, errno := lp.wait(lp.relay.clock(), tick)
	lp.look()
	for i := range n {
		lp.handle(&lp.events[i])
	}
	lp.flush()
	if !lp.tickAt.IsZero() && !lp.now.Before(lp.tickAt) {
		lp.tickAt = time.Time{}
		lp.expire()
	}
	lp.yield(lp.now.Sub(lp.relay.born))
	return errno
}

func (lp *udpLoop) handle(e *unix.EpollEvent) {
	defer lp.contain()
	if e.Fd == bellSlot {
		lp.answerBell(lp.call)
	} else if s := lp.sourceOf(e); s != nil {
		s.event(e.Events)
	}
}

// contain, when deferred, keeps one datagram's or session's fault from ending the loop.
func (lp *udpLoop) contain() {
	if p := recover(); p != nil {
		lp.relay.cfg.Log.WithFields(logrus.Fields{"panic": p, "stack": string(debug.Stack())}).Error("relaying datagrams panicked, please report it")
		lp.queued, lp.replyTo = 0, nil
	}
}

// reserve makes room for replies to l and returns the first free place in out.
func (lp *udpLoop) reserve(l *UDPListener, n int) int {
	if lp.replyTo != l || lp.queued+n > batchSize {
		lp.flush()
		lp.replyTo = l
	}
	return lp.queued
}

// flush sends the queued replies. One that cannot be sent is lost, as datagrams are; the rest goes on.
func (lp *udpLoop) flush() {
	for first := 0; first < lp.queued; {
		n, errno := lp.out.send(lp.replyTo.fd, first, lp.queued-first)
		if errno != 0 {
			lp.replyTo.stats.dropped.Add(1)
			n = 1
		}
		first += n
	}
	lp.queued, lp.replyTo = 0, nil
}

func (lp *udpLoop) call(f func()) {
	defer lp.contain()
	f()
}

func (lp *udpLoop) stop() {
	lp.do(func() { lp.done = true })
}

// look looks at the clock.
func (lp *udpLoop) look() { lp.now = lp.relay.born.Add(lp.relay.clock()) }

// tick is how often idle sessions are looked for.
func (lp *udpLoop) tick() time.Duration {
	return min(max(lp.relay.cfg.UDPTimeout/4, 10*time.Millisecond), time.Second)
}

func (lp *udpLoop) expire() {
	defer lp.contain()
	for l := range lp.members {
		l.expire(lp.now)
	}
}
