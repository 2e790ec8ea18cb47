package relay

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// System calls of the event loops on single sockets. All sockets are non-blocking, so none of these can block and they are
// made raw: what the scheduler does around an ordinary system call costs as much as these themselves, and a session of
// one datagram makes five of them, a short connection some fifteen.

// sendTo sends one datagram on a connected socket, without waiting.
func sendTo(fd int, data []byte) unix.Errno {
	var base unsafe.Pointer
	if len(data) > 0 {
		base = unsafe.Pointer(&data[0])
	}
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(base), uintptr(len(data)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if errno != unix.EINTR {
			return errno
		}
	}
}

// readRaw reads into b, which must not be empty.
func readRaw(fd int, b []byte) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// writeRaw writes b, which must not be empty, to a stream socket, without a SIGPIPE if the peer is gone.
func writeRaw(fd int, b []byte) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// acceptRaw takes a connection out of the accept queue, and its client's address.
func acceptRaw(listener int) (fd int, client netip.Addr, errno unix.Errno) {
	var name unix.RawSockaddrInet6 // the larger one
	size := uint32(unsafe.Sizeof(name))
	n, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&size)),
		unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	if errno != 0 {
		return -1, client, errno
	}
	if name.Family == unix.AF_INET {
		client = netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&name)).Addr)
	} else {
		client = netip.AddrFrom16(name.Addr).Unmap()
	}
	return int(n), client, 0
}

// streamSocket makes a TCP socket of the address's family.
func streamSocket(addr netip.Addr) (int, unix.Errno) {
	family := uintptr(unix.AF_INET6)
	if addr.Is4() {
		family = unix.AF_INET
	}
	fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	return int(fd), errno
}

func setMark(fd int, mark uint32) error {
	return check(unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MARK, uintptr(unsafe.Pointer(&mark)), unsafe.Sizeof(mark), 0))
}

// connectTo makes to the only peer of a datagram socket, or begins to connect a stream socket (EINPROGRESS).
func connectTo(fd int, to netip.AddrPort) error {
	if to.Addr().Is4() {
		sa := unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: to.Addr().As4(), Port: ntohs(to.Port())}
		return check(unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa)))
	}
	sa := unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: to.Addr().As16(), Port: ntohs(to.Port())}
	return check(unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa)))
}

// unconnect dissolves what connectTo made, and a choice of interface with it. A port that was bound by number stays.
func unconnect(fd int) error {
	sa := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	return check(unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa)))
}

// shutdownRaw sends a FIN.
func shutdownRaw(fd int) error {
	return check(unix.RawSyscall(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0))
}

// splice moves bytes from a socket to a pipe or from a pipe to a socket.
func splice(from, to, most int) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(most), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

func closeRaw(fd int) { unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

func check(_, _ uintptr, errno unix.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}
