package relay

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxDatagram is the largest UDP payload there can be, and one more byte for luck in alignment: 64 KiB.
const maxDatagram = 64 << 10

// mmsghdr is struct mmsghdr of recvmmsg(2), which golang.org/x/sys does not have. golang.org/x/net has batches, but only
// for its own connections, which wait one goroutine each; here the descriptors belong to an event loop.
type mmsghdr struct {
	unix.Msghdr
	len uint32
}

// controlSize holds IPV6_PKTINFO and SO_RXQ_OVFL, with headers.
const controlSize = 64

// batch is a row of datagrams on their way through one system call.
type batch struct {
	hdrs     []mmsghdr
	iovs     []unix.Iovec
	bufs     [][]byte
	names    []unix.RawSockaddrInet6 // large enough for either family
	controls [][controlSize]byte
}

func newBatch(n int) *batch {
	b := &batch{
		hdrs: make([]mmsghdr, n), iovs: make([]unix.Iovec, n), bufs: make([][]byte, n),
		names: make([]unix.RawSockaddrInet6, n), controls: make([][controlSize]byte, n),
	}
	// One piece of address space: pages are touched only by datagrams that are long enough.
	space := make([]byte, n*maxDatagram)
	for i := range n {
		b.bufs[i] = space[i*maxDatagram : (i+1)*maxDatagram : (i+1)*maxDatagram]
		b.iovs[i].Base = &b.bufs[i][0]
		b.hdrs[i].Iov = &b.iovs[i]
		b.hdrs[i].SetIovlen(1)
	}
	return b
}

// recv takes up to n datagrams into the slots from first on, without waiting. With addresses, it also takes where they
// came from and went to.
func (b *batch) recv(fd, first, n int, addresses bool) (int, unix.Errno) {
	for i := first; i < first+n; i++ {
		h := &b.hdrs[i]
		b.iovs[i].SetLen(maxDatagram)
		h.Name, h.Namelen, h.Control = nil, 0, nil
		h.SetControllen(0)
		if addresses {
			h.Name, h.Namelen = (*byte)(unsafe.Pointer(&b.names[i])), unix.SizeofSockaddrInet6
			h.Control = &b.controls[i][0]
			h.SetControllen(controlSize)
		}
	}
	return b.call(unix.SYS_RECVMMSG, fd, first, n, unix.MSG_DONTWAIT)
}

// address aims slot i, which holds n bytes, at a session's client.
func (b *batch) address(i, n int, s *udpSession) {
	h := &b.hdrs[i]
	b.iovs[i].SetLen(n)
	h.Name, h.Namelen = (*byte)(unsafe.Pointer(&s.name)), s.nameLen
	h.Control = &s.control[0]
	h.SetControllen(s.controlLen)
}

func (b *batch) send(fd, first, n int) (int, unix.Errno) {
	return b.call(unix.SYS_SENDMMSG, fd, first, n, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// call makes the system call raw: it cannot block, so the scheduler need not hear of it.
func (b *batch) call(trap uintptr, fd, first, n, flags int) (int, unix.Errno) {
	for {
		r, _, errno := unix.RawSyscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&b.hdrs[first])), uintptr(n), uintptr(flags), 0, 0)
		if errno != unix.EINTR {
			return int(r), errno
		}
	}
}

// data is what slot i received.
func (b *batch) data(i int) []byte { return b.bufs[i][:b.hdrs[i].len] }

// clientKey is where a datagram came from and which of the node's addresses it was sent to: what a reply has to invert.
// It is made of bytes alone, which hash fast.
type clientKey struct {
	addr, local [16]byte
	port        uint16
	scope       uint32 // interface of a link-local address
}

// from reads slot i's addresses. drops is the kernel's count of datagrams lost for want of buffer (SO_RXQ_OVFL), if it
// said so.
func (b *batch) from(i int) (key clientKey, drops uint32, ok bool) {
	h := &b.hdrs[i]
	name := &b.names[i]
	switch name.Family {
	case unix.AF_INET:
		in4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		key.addr, key.port = netip.AddrFrom4(in4.Addr).As16(), ntohs(in4.Port)
	case unix.AF_INET6:
		key.addr, key.port = name.Addr, ntohs(name.Port)
		key.scope = name.Scope_id
	default:
		return key, 0, false
	}
	rest := b.controls[i][:h.Controllen]
	for len(rest) >= unix.SizeofCmsghdr {
		c := (*unix.Cmsghdr)(unsafe.Pointer(&rest[0]))
		size := int(c.Len)
		if size < unix.SizeofCmsghdr || size > len(rest) {
			break
		}
		body := rest[unix.CmsgLen(0):size]
		switch {
		case c.Level == unix.IPPROTO_IP && c.Type == unix.IP_PKTINFO && len(body) >= unix.SizeofInet4Pktinfo:
			key.local = netip.AddrFrom4((*unix.Inet4Pktinfo)(unsafe.Pointer(&body[0])).Spec_dst).As16()
			ok = true
		case c.Level == unix.IPPROTO_IPV6 && c.Type == unix.IPV6_PKTINFO && len(body) >= unix.SizeofInet6Pktinfo:
			key.local = (*unix.Inet6Pktinfo)(unsafe.Pointer(&body[0])).Addr
			ok = true
		case c.Level == unix.SOL_SOCKET && c.Type == unix.SO_RXQ_OVFL && len(body) >= 4:
			drops = *(*uint32)(unsafe.Pointer(&body[0]))
		}
		rest = rest[min(unix.CmsgSpace(size-unix.CmsgLen(0)), len(rest)):]
	}
	return key, drops, ok
}

// ntohs reads a port of a raw sockaddr, which is in network byte order whatever the machine's.
func ntohs(v uint16) uint16 {
	b := (*[2]byte)(unsafe.Pointer(&v))
	return uint16(b[0])<<8 | uint16(b[1])
}
