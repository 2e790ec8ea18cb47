package relay

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

const (
	batchSize = 32 // datagrams per recvmmsg(2) of a listener, and per sendmmsg(2) of replies
	replySize = 8  // replies taken from one session at a time, so that a busy one does not hold up the others
	eventSize = 128
)

// udpLoop is the event loop of some listeners and all their sessions. Its goroutine owns them: nothing here is locked but
// the queue of requests from outside.
//
// It waits without holding a thread: its epoll descriptor is itself registered with the Go runtime's poller. Sockets are
// level-triggered, and each is read once per turn, so that a flood on one of them delays the others by a batch only.
type udpLoop struct {
	relay *Relay
	file  *os.File // the epoll descriptor
	raw   syscall.RawConn
	epoll int
	bell  int // an eventfd: the queue is not empty

	events  [eventSize]unix.EpollEvent
	in, out *batch
	queued  int          // replies in out
	replyTo *UDPListener // the listener that queued replies leave by
	now     time.Time    // of this turn
	tickAt  time.Time    // when to look for idle sessions; zero: not set
	slots   []slot
	free    []int32
	members map[*UDPListener]struct{}
	ended   chan struct{}
	live    int  // sessions of all members
	done    bool // stop was answered

	mu      sync.Mutex
	queue   []func()
	stopped bool
}

// slot is what an epoll event refers to. An event of a socket that was closed earlier in the same turn carries an old
// generation.
type slot struct {
	generation int32
	listener   *UDPListener
	session    *udpSession
}

// bellSlot marks the loop's own eventfd.
const bellSlot = -1

func newUDPLoop(r *Relay) (*udpLoop, error) {
	lp := &udpLoop{relay: r, in: newBatch(batchSize), out: newBatch(batchSize), members: map[*UDPListener]struct{}{}, ended: make(chan struct{})}
	var err error
	if lp.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("event loop: %w", err)
	}
	if lp.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(lp.epoll)
		return nil, fmt.Errorf("event loop: %w", err)
	}
	if err = unix.SetNonblock(lp.epoll, true); err == nil { // what makes os.File use the poller
		err = unix.EpollCtl(lp.epoll, unix.EPOLL_CTL_ADD, lp.bell, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: bellSlot})
	}
	if err == nil {
		lp.file = os.NewFile(uintptr(lp.epoll), "epoll")
		lp.raw, err = lp.file.SyscallConn()
	}
	if err != nil {
		unix.Close(lp.bell)
		unix.Close(lp.epoll)
		return nil, fmt.Errorf("event loop: %w", err)
	}
	return lp, nil
}

// run is the goroutine of the loop. The Relay owns it and ends it by stop.
func (lp *udpLoop) run() {
	defer close(lp.ended)
	defer unix.Close(lp.bell)
	defer lp.file.Close()
	for !lp.done {
		if lp.tickAt.IsZero() && lp.live > 0 {
			lp.tickAt = time.Now().Add(lp.tick())
			lp.file.SetReadDeadline(lp.tickAt)
		}
		if err := lp.raw.Read(lp.turns); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			lp.relay.cfg.Log.WithError(err).Error("event loop failed, UDP is not relayed any more")
			break
		}
		if lp.now = time.Now(); lp.tickIsDue() {
			lp.tickAt = time.Time{}
			lp.file.SetReadDeadline(time.Time{})
			lp.expire()
		}
	}
	lp.mu.Lock()
	lp.stopped = true // also when the loop has failed: nothing is queued any more
	lp.mu.Unlock()
	lp.answerBell()
	for l := range lp.members {
		l.markClosed()
		lp.call(l.end)
	}
}

// turns handles events until there are none. false: wait for more; true: look at the clock or the end first.
func (lp *udpLoop) turns(uintptr) bool {
	for {
		n, errno := lp.poll()
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 || n == 0 {
			return errno != 0
		}
		lp.now = time.Now()
		drained := n < len(lp.events)
		for i := range n {
			if !lp.handle(&lp.events[i]) {
				drained = false
			}
		}
		lp.flush()
		if lp.done || lp.tickIsDue() || lp.tickAt.IsZero() && lp.live > 0 {
			return true
		}
		// What arrives from now on wakes the poller. What was left unread does not: it has been announced already.
		if drained {
			return false
		}
	}
}

// poll takes the events there are, without waiting, by a raw system call. unix.EpollWait would announce it to the
// scheduler; if all processors were idle until this moment, that wakes the runtime's monitor thread (sysmon), which finds
// nothing to do and goes back to sleep: two futex calls and a change of threads for each datagram of a lone client.
func (lp *udpLoop) poll() (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(lp.epoll), uintptr(unsafe.Pointer(&lp.events[0])), eventSize, 0, 0, 0)
	return int(n), errno
}

// handle serves one event and reports whether its socket was read to the end.
func (lp *udpLoop) handle(e *unix.EpollEvent) (drained bool) {
	defer lp.contain()
	if e.Fd == bellSlot {
		lp.answerBell()
		return true
	}
	s := &lp.slots[e.Fd]
	switch {
	case s.generation != e.Pad:
		return true
	case s.listener != nil:
		return s.listener.readable()
	case s.session != nil:
		return s.session.readable()
	}
	return true
}

// contain, when deferred, keeps one datagram's or session's fault from ending the loop.
func (lp *udpLoop) contain() {
	if p := recover(); p != nil {
		lp.relay.cfg.Log.WithFields(logrus.Fields{"panic": p, "stack": string(debug.Stack())}).Error("relaying datagrams panicked, please report it")
		lp.queued, lp.replyTo = 0, nil
	}
}

// register adds a socket and returns its slot.
func (lp *udpLoop) register(fd int, l *UDPListener, s *udpSession) (int32, error) {
	var i int32
	if n := len(lp.free); n > 0 {
		i, lp.free = lp.free[n-1], lp.free[:n-1]
	} else {
		i = int32(len(lp.slots))
		lp.slots = append(lp.slots, slot{})
	}
	lp.slots[i].listener, lp.slots[i].session = l, s
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: i, Pad: lp.slots[i].generation}
	if err := unix.EpollCtl(lp.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		lp.release(i)
		return 0, err
	}
	return i, nil
}

// release frees a slot. The socket leaves the epoll set by being closed.
func (lp *udpLoop) release(i int32) {
	lp.slots[i] = slot{generation: lp.slots[i].generation + 1}
	lp.free = append(lp.free, i)
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

// do has f run by the loop. It returns false when the loop has ended.
func (lp *udpLoop) do(f func()) bool {
	lp.mu.Lock()
	defer lp.mu.Unlock()
	if lp.stopped {
		return false
	}
	lp.queue = append(lp.queue, f)
	if len(lp.queue) == 1 {
		lp.ring()
	}
	return true
}

// ring runs with mu held, so that the eventfd is not closed meanwhile.
func (lp *udpLoop) ring() { unix.Write(lp.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func (lp *udpLoop) answerBell() {
	var count [8]byte
	unix.Read(lp.bell, count[:])
	lp.mu.Lock()
	queue := lp.queue
	lp.queue = nil
	lp.mu.Unlock()
	for _, f := range queue {
		lp.call(f)
	}
}

func (lp *udpLoop) call(f func()) {
	defer lp.contain()
	f()
}

func (lp *udpLoop) stop() {
	lp.do(func() { lp.done = true })
}

// tickIsDue is asked also while there is no end of events, when nobody waits and no deadline passes.
func (lp *udpLoop) tickIsDue() bool { return !lp.tickAt.IsZero() && !lp.now.Before(lp.tickAt) }

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
