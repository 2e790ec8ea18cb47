package local

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// sourceFor chooses what the node's own clients connect from, given the present choice, which stays while the node has
// it: the first address of the default route's interface, as it would be without us, else the first of any, else the
// loopback address. It is never the VIP.
func (t *table) sourceFor(now netip.Addr) netip.Addr {
	var uplink, first, loopback netip.Addr
	for _, a := range t.addrs {
		switch {
		case a.addr.IsLoopback():
			if !loopback.IsValid() {
				loopback = a.addr
			}
			continue
		case a.addr == now:
			return now
		case !first.IsValid() || t.onLoopback(first) && !a.loopback: // one of lo is for want of another
			first = a.addr
		}
		if a.device == t.uplink && !uplink.IsValid() {
			uplink = a.addr
		}
	}
	switch {
	case uplink.IsValid():
		return uplink
	case first.IsValid():
		return first
	}
	return loopback
}

func (t *table) onLoopback(addr netip.Addr) bool {
	for _, a := range t.addrs {
		if a.addr == addr {
			return a.loopback
		}
	}
	return false
}

// usable returns an address that can be a source now and later: not a link-local one, which belongs to one interface, nor
// a temporary one (RFC 8981), nor one that waits for duplicate address detection.
func usable(a netlink.Addr) (netip.Addr, bool) {
	const unsteady = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED | unix.IFA_F_TEMPORARY
	addr, ok := netip.AddrFromSlice(a.IP)
	addr = addr.Unmap()
	// In IPv4 the flag of temporary addresses means "secondary", which is as good as any.
	if !ok || addr.Is6() && (addr.IsLinkLocalUnicast() || a.Flags&unsteady != 0) {
		return netip.Addr{}, false
	}
	return addr, true
}
