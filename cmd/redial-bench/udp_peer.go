package main

import (
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// The peers work on plain descriptors with raw, blocking system calls: the Go scheduler and its poller would take
// processor time from what is measured. Whoever does so must not have the garbage collector wait for it: see quietly.

// udpEchoCommand is the backend.
func udpEchoCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "udp-echo ADDRESS",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			addr, err := netip.ParseAddrPort(args[0])
			if err != nil {
				return err
			}
			return udpEcho(addr)
		},
	}
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	unix.Msghdr
	len uint32
}

// udpEcho answers datagrams with themselves, as many at a time as there are.
func udpEcho(addr netip.AddrPort) error {
	fd, err := udpSocket(addr, netip.AddrPort{})
	if err != nil {
		return err
	}
	quietly()
	const batch, size = 64, 2048
	hdrs := make([]mmsghdr, batch)
	iovs := make([]unix.Iovec, batch)
	names := make([]unix.RawSockaddrInet4, batch)
	bufs := make([]byte, batch*size)
	for i := range batch {
		iovs[i].Base = &bufs[i*size]
		hdrs[i].Iov = &iovs[i]
		hdrs[i].SetIovlen(1)
		hdrs[i].Name = (*byte)(unsafe.Pointer(&names[i]))
	}
	for {
		for i := range batch {
			iovs[i].SetLen(size)
			hdrs[i].Namelen = unix.SizeofSockaddrInet4
		}
		n, errno := mmsg(unix.SYS_RECVMMSG, fd, hdrs, unix.MSG_WAITFORONE)
		if errno == unix.EINTR {
			continue
		} else if errno != 0 {
			return fmt.Errorf("receiving on %s: %w", addr, errno)
		}
		for i := range n {
			iovs[i].SetLen(int(hdrs[i].len))
		}
		for sent := 0; sent < n; {
			m, errno := mmsg(unix.SYS_SENDMMSG, fd, hdrs[sent:n], 0)
			if errno != 0 && errno != unix.EINTR {
				m = 1 // that client has gone; the next reply is for another
			}
			sent += max(m, 0)
		}
	}
}

func mmsg(trap uintptr, fd int, hdrs []mmsghdr, flags int) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&hdrs[0])), uintptr(len(hdrs)), uintptr(flags), 0, 0)
	return int(n), errno
}

// udpSocket makes a blocking socket, bound to one address and, if it is valid, connected to another.
func udpSocket(local, remote netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	// More than is ever on its way here, so that no loss is the peers' own. Beyond the limit takes a privilege.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20) != nil {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20)
	}
	patience := unix.NsecToTimeval(udpPatience.Nanoseconds())
	if local.IsValid() {
		err = unix.Bind(fd, sockaddr(local))
	}
	if err == nil && remote.IsValid() {
		if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err == nil {
			err = unix.Connect(fd, sockaddr(remote))
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

func rawSend(fd int, b []byte) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
	return errno
}

func rawReceive(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
	return int(n), errno
}

func rawEpollWait(epoll int, events []unix.EpollEvent, atMost time.Duration) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)),
		uintptr(atMost.Milliseconds()), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}
