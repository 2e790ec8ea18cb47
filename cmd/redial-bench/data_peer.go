package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func dataPeerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "data-peer ADDRESS",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			addr, err := netip.ParseAddrPort(args[0])
			if err != nil {
				return err
			}
			p := &dataPeer{buf: make([]byte, bulkSize)}
			return p.serve(addr)
		},
	}
}

// dataPeer is the backend: one thread, which is enough for a proxy that shares its machine.
type dataPeer struct {
	epoll int
	conns []dataConn // by descriptor: with the garbage collector off, nothing may be allocated per connection
	buf   []byte
}

type dataConn struct {
	ask    byte
	head   [requestSize]byte
	got    uint64 // bytes, the head included
	stream stream
	wrong  bool
}

// serve says where it listens on standard output.
func (p *dataPeer) serve(addr netip.AddrPort) error {
	listener, err := tcpSocket()
	if err != nil {
		return err
	}
	unix.SetsockoptInt(listener, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err := unix.Bind(listener, &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}); err != nil {
		return fmt.Errorf("binding %s: %w", addr, err)
	}
	if err := unix.Listen(listener, 65535); err != nil {
		return fmt.Errorf("listening on %s: %w", addr, err)
	}
	if bound, err := unix.Getsockname(listener); err == nil {
		fmt.Fprintln(os.Stdout, netip.AddrPortFrom(addr.Addr(), uint16(bound.(*unix.SockaddrInet4).Port)))
	}
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if err := p.await(unix.EPOLL_CTL_ADD, listener, unix.EPOLLIN); err != nil {
		return err
	}
	quietly()
	events := make([]unix.EpollEvent, 256)
	for {
		n, errno := rawEpollWait(p.epoll, events, -time.Millisecond)
		if errno != 0 && errno != unix.EINTR {
			return fmt.Errorf("waiting for clients: %w", errno)
		}
		for _, e := range events[:max(n, 0)] {
			if fd := int(e.Fd); fd == listener {
				p.accept(listener)
			} else if !p.answer(fd, &p.conns[fd], e.Events) {
				rawClose(fd)
			}
		}
	}
}

func (p *dataPeer) await(op, fd int, events uint32) error {
	return unix.EpollCtl(p.epoll, op, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

func (p *dataPeer) accept(listener int) {
	fd, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener), 0, 0, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	if errno != 0 {
		return
	}
	for len(p.conns) <= int(fd) {
		p.conns = append(p.conns, dataConn{})
	}
	p.conns[fd] = dataConn{}
	p.await(unix.EPOLL_CTL_ADD, int(fd), unix.EPOLLIN)
}

// answer serves one connection and reports that it goes on.
func (p *dataPeer) answer(fd int, c *dataConn, events uint32) bool {
	if events&unix.EPOLLOUT != 0 {
		n, errno := rawWrite(fd, c.stream.next(bulkSize))
		if errno == 0 {
			c.stream.skip(n)
		}
		return errno == 0 || errno == unix.EAGAIN
	}
	n, errno := rawRead(fd, p.buf)
	if errno == unix.EAGAIN {
		return true
	}
	if errno != 0 {
		return false
	}
	if n == 0 {
		if c.ask == askTake {
			p.judge(fd, c)
		}
		return false
	}
	b := p.buf[:n]
	if c.ask == 0 {
		c.ask = b[0]
	}
	if c.ask == askEcho {
		m, errno := rawWrite(fd, b)
		return errno == 0 && m == n
	}
	before := c.got
	c.got += uint64(n)
	if before < requestSize {
		b = b[copy(c.head[before:], b):]
		if c.got < requestSize {
			return true
		}
		ask, number, ok := parseDataRequest(c.head)
		if c.stream = streamOf(number); ask == askGive && ok {
			return p.await(unix.EPOLL_CTL_MOD, fd, unix.EPOLLIN|unix.EPOLLOUT) == nil
		}
		c.wrong = ask != askTake || !ok
	}
	if c.ask != askTake {
		return false
	}
	if !c.stream.take(b) {
		c.wrong = true
	}
	return true
}

// judge answers a stream that has ended. It was read to its end, wrong or not, since to close before that is a reset, which
// may overtake the answer.
func (p *dataPeer) judge(fd int, c *dataConn) {
	verdict := c.got
	if c.wrong {
		verdict = wrongBytes
	}
	rawWrite(fd, binary.NativeEndian.AppendUint64(p.buf[:0], verdict))
}

func tcpSocket() (int, error) {
	fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if errno != 0 {
		return -1, fmt.Errorf("making a socket: %w", errno)
	}
	return int(fd), nil
}

func rawRead(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return int(n), errno
}

func rawWrite(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

func rawClose(fd int) { unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }
