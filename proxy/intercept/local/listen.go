package local

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ListenControl returns what prepares a listening socket, before it is bound to addr, for a VIP that is local by a route
// of ours.
//
// It allows to bind and to send from addresses that no interface has: for IPv6 the kernel looks at interfaces alone
// (ipv6_chk_addr), where it asks the routes for IPv4 (inet_addr_type). It also lets the listener survive until the route
// is written.
//
// And it keeps the proxy from calling itself. When a backend is a VIP too, a mark on the proxy's own dials is of no use,
// as no rule looks at it; but packets keep it through lo, so a socket filter can drop them. Such a dial then ends like one
// to a silent backend. 0 means no filter, and then a Service that is its own backend takes all files there are.
func ListenControl(mark uint32) func(fd int, addr netip.AddrPort) error {
	return func(fd int, addr netip.AddrPort) error {
		level, option := unix.IPPROTO_IP, unix.IP_FREEBIND
		if addr.Addr().Is6() {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_FREEBIND
		}
		if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
			return fmt.Errorf("setting IP_FREEBIND: %w", err)
		}
		if mark == 0 {
			return nil
		}
		program := unmarked(mark)
		filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter); err != nil {
			return fmt.Errorf("setting a filter against loops: %w", err)
		}
		return nil
	}
}

// unmarked is a classic BPF program that lets packets pass that carry no bit of mark.
func unmarked(mark uint32) []unix.SockFilter {
	const skfAdOff, skfAdMark = -0x1000, 20 // linux/filter.h
	offset := int32(skfAdOff + skfAdMark)
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(offset)},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: mark, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	}
}
