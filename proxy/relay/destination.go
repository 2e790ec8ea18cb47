package relay

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// originalDst is SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST.
const originalDst = 80

// destination returns the address that the client has dialled, which is not the socket's own if a rule has redirected it:
// what connection tracking knows of that or, if it does not track the connection, the socket's own after all.
func (c *conn) destination() netip.AddrPort {
	if to, ok := originalDestination(c.client.fd, c.clientIP); ok {
		return to
	}
	return nameOf(unix.SYS_GETSOCKNAME, c.client.fd)
}

// destination returns the address that tells whose a connection is; false: there is none.
func (a *acceptor) destination(fd int, client netip.Addr) (netip.AddrPort, bool) {
	if a.assigned {
		to := nameOf(unix.SYS_GETSOCKNAME, fd)
		return to, to.IsValid()
	}
	return originalDestination(fd, client)
}

// originalDestination returns what connection tracking knows; false: it does not track the connection.
func originalDestination(fd int, client netip.Addr) (netip.AddrPort, bool) {
	level := uintptr(unix.IPPROTO_IPV6)
	if client.Is4() {
		level = unix.IPPROTO_IP
	}
	var name unix.RawSockaddrInet6
	size := uint32(unsafe.Sizeof(name))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), level, originalDst,
		uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return netip.AddrPort{}, false
	}
	return addrPort(&name), true
}

// nameOf makes the system call getsockname(2) or getpeername(2). What fails is not valid.
func nameOf(call uintptr, fd int) netip.AddrPort {
	var name unix.RawSockaddrInet6
	size := uint32(unsafe.Sizeof(name))
	if _, _, errno := unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&size))); errno != 0 {
		return netip.AddrPort{}
	}
	return addrPort(&name)
}

func addrPort(name *unix.RawSockaddrInet6) netip.AddrPort {
	port := ntohs(name.Port) // at the same place in both
	if name.Family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(name.Addr).Unmap(), port)
}
