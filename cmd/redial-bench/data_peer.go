package main

import (
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// What the first byte of a connection asks the backend for.
const (
	askEcho  = 'e' // bytes, that one included, come back
	askTake  = 't' // bytes are thrown away
	askGive  = 'g' // bytes come for as long as the client takes them
	bulkSize = 256 << 10
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
			return dataPeer(addr)
		},
	}
}

// dataPeer is the backend: one thread, which is enough for a proxy that shares its machine.
func dataPeer(addr netip.AddrPort) error {
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
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, listener, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(listener)}); err != nil {
		return err
	}
	quietly()
	asked := map[int]byte{}
	buf := make([]byte, bulkSize)
	events := make([]unix.EpollEvent, 256)
	for {
		n, errno := rawEpollWait(epoll, events, -time.Millisecond)
		if errno != 0 && errno != unix.EINTR {
			return fmt.Errorf("waiting for clients: %w", errno)
		}
		for _, e := range events[:max(n, 0)] {
			fd := int(e.Fd)
			if fd == listener {
				conn, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), 0, 0, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
				if errno == 0 {
					unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, int(conn), &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(conn)})
				}
				continue
			}
			if !answer(epoll, fd, e.Events, asked, buf) {
				delete(asked, fd)
				rawClose(fd)
			}
		}
	}
}

// answer serves one connection and reports that it goes on.
func answer(epoll, fd int, events uint32, asked map[int]byte, buf []byte) bool {
	if events&unix.EPOLLOUT != 0 {
		_, errno := rawWrite(fd, buf)
		return errno == 0 || errno == unix.EAGAIN
	}
	n, errno := rawRead(fd, buf)
	if errno == unix.EAGAIN {
		return true
	}
	if errno != 0 || n == 0 {
		return false
	}
	what, ok := asked[fd]
	if !ok {
		what = buf[0]
		asked[fd] = what
	}
	switch what {
	case askEcho:
		m, errno := rawWrite(fd, buf[:n])
		return errno == 0 && m == n
	case askGive:
		unix.EpollCtl(epoll, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT, Fd: int32(fd)})
	}
	return true
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
