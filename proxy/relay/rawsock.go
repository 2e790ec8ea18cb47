package relay

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// System calls of the UDP loop on single sockets. None of them can block, so they are made raw: what the scheduler does
// around an ordinary system call costs as much as these themselves, and a session of one datagram makes five of them.

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

func setMark(fd int, mark uint32) error {
	return check(unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MARK, uintptr(unsafe.Pointer(&mark)), unsafe.Sizeof(mark), 0))
}

// connectTo makes to the only peer of a datagram socket.
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

func closeRaw(fd int) { unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

func check(_, _ uintptr, errno unix.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}
