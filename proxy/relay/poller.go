package relay

import (
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const eventSize = 128 // events per epoll_wait(2)

// poller is what an event loop waits with: an epoll descriptor, the sockets in it, and a queue of requests from other
// goroutines. All but do belongs to the loop's goroutine.
//
// It waits in epoll_wait(2), on a thread of its own. The Go scheduler lends a processor (P) to whoever makes a system call,
// and takes it away after 20 microseconds if all are in use, which costs several thread switches for each wait; as long as
// one is idle, only after 10 milliseconds (runtime.retake). So a process with loops should have more Ps than loops
// ([Config.Loops]). Waiting with the runtime's own poller instead, by way of the epoll descriptor, takes four system calls for
// each wait and moves the loop from thread to thread.
type poller struct {
	epoll   int
	bell    int // an eventfd: the queue is not empty
	events  [eventSize]unix.EpollEvent
	slots   []slot
	free    []int32
	yielded time.Duration // when yield last did

	mu      sync.Mutex // guards what follows
	queue   []func()
	stopped bool
}

// source is a socket in a poller.
type source interface {
	// event is told what epoll knows of the socket.
	event(events uint32)
}

// slot is what an epoll event refers to. An event of a socket that was closed earlier in the same turn carries an old
// generation.
type slot struct {
	generation int32
	source     source
}

// bellSlot marks the poller's own eventfd.
const bellSlot = -1

func (p *poller) init() error {
	var err error
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("event loop: %w", err)
	}
	if p.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(p.epoll)
		return fmt.Errorf("event loop: %w", err)
	}
	if err = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, p.bell, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: bellSlot}); err != nil {
		unix.Close(p.bell)
		unix.Close(p.epoll)
		return fmt.Errorf("event loop: %w", err)
	}
	return nil
}

// close lets nothing into the queue any more, and has run called for what is in it.
func (p *poller) close(run func(func())) {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	p.answerBell(run)
	unix.Close(p.epoll)
	unix.Close(p.bell)
}

// poll takes the events there are, without waiting.
func (p *poller) poll() (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epoll), uintptr(unsafe.Pointer(&p.events[0])), eventSize, 0, 0, 0)
	return max(int(n), 0), errno
}

// wait waits for events until the time at, on a clock that shows now; 0: for ever.
func (p *poller) wait(now, at time.Duration) (int, unix.Errno) {
	timeout := -1
	if at > 0 {
		timeout = int(max(at-now+time.Millisecond-1, 0) / time.Millisecond)
	}
	n, err := unix.EpollWait(p.epoll, p.events[:], timeout)
	if err != nil {
		errno, _ := err.(unix.Errno)
		return 0, errno
	}
	return n, 0
}

// yieldEvery is a little less than what a goroutine may run for before the runtime's monitor thread interrupts it
// (forcePreemptNS), which it does again every 20 microseconds from then on, whenever the loop waits.
const yieldEvery = 8 * time.Millisecond

// yield lets the scheduler know now and then that the goroutine is not running away.
func (p *poller) yield(now time.Duration) {
	if now-p.yielded >= yieldEvery {
		p.yielded = now
		runtime.Gosched()
	}
}

// register adds a socket and returns its slot.
func (p *poller) register(fd int, events uint32, s source) (int32, error) {
	var i int32
	if n := len(p.free); n > 0 {
		i, p.free = p.free[n-1], p.free[:n-1]
	} else {
		i = int32(len(p.slots))
		p.slots = append(p.slots, slot{})
	}
	p.slots[i].source = s
	event := unix.EpollEvent{Events: events, Fd: i, Pad: p.slots[i].generation}
	if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		p.release(i)
		return 0, err
	}
	return i, nil
}

// release frees a slot. The socket leaves the epoll set by being closed.
func (p *poller) release(i int32) {
	p.slots[i] = slot{generation: p.slots[i].generation + 1}
	p.free = append(p.free, i)
}

// sourceOf returns the socket that an event is about, or nil if it has been closed.
func (p *poller) sourceOf(e *unix.EpollEvent) source {
	if s := &p.slots[e.Fd]; s.generation == e.Pad {
		return s.source
	}
	return nil
}

// do has f run by the loop. It returns false when the loop has ended.
func (p *poller) do(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return false
	}
	p.queue = append(p.queue, f)
	if len(p.queue) == 1 {
		unix.Write(p.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // with mu held, so that it is not closed meanwhile
	}
	return true
}

// answerBell has run called for what is in the queue, in order.
func (p *poller) answerBell(run func(func())) {
	var count [8]byte
	unix.Read(p.bell, count[:])
	p.mu.Lock()
	queue := p.queue
	p.queue = nil
	p.mu.Unlock()
	for _, f := range queue {
		run(f)
	}
}
