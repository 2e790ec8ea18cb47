package relay

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const eventSize = 128 // events per epoll_wait(2)

// poller is what an event loop waits with: an epoll descriptor, the sockets in it, and a queue of requests from other
// goroutines. All but do belongs to the loop's goroutine.
//
// It waits without holding a thread: the epoll descriptor is itself registered with the Go runtime's poller, edge-triggered.
// So a loop may wait only after it has taken every event there was.
type poller struct {
	file   *os.File // the epoll descriptor
	raw    syscall.RawConn
	epoll  int
	bell   int // an eventfd: the queue is not empty
	events [eventSize]unix.EpollEvent
	slots  []slot
	free   []int32

	mu      sync.Mutex // guards what follows
	queue   []func()
	stopped bool
}

// source is a socket in a poller.
type source interface {
	// event is told what epoll knows of the socket. It returns false to be asked again before the loop waits.
	event(events uint32) (done bool)
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
	if err = unix.SetNonblock(p.epoll, true); err == nil { // what makes os.File use the runtime's poller
		err = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, p.bell, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: bellSlot})
	}
	if err == nil {
		p.file = os.NewFile(uintptr(p.epoll), "epoll")
		p.raw, err = p.file.SyscallConn()
	}
	if err != nil {
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
	p.file.Close()
	unix.Close(p.bell)
}

// poll takes the events there are, without waiting, by a raw system call. unix.EpollWait would announce it to the
// scheduler; if all processors were idle until this moment, that wakes the runtime's monitor thread (sysmon), which finds
// nothing to do and goes back to sleep: two futex calls and a change of threads for each datagram of a lone client.
func (p *poller) poll() (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epoll), uintptr(unsafe.Pointer(&p.events[0])), eventSize, 0, 0, 0)
	return int(n), errno
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
