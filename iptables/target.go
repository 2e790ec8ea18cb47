package iptables

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Target says how rules hand a packet to the proxy.
//
// REDIRECT translates to the first address of the interface that a packet came in by, and drops the packet if that has
// none: interfaces to pods are like this under some network plug-ins. DNAT translates to one address of the node
// whatever the interface. Both work for connections from the node itself, loopback included.
type Target string

// Targets.
const (
	// TargetAuto is DNAT once an interface that is up (loopback and bridge ports aside) has no address of the family,
	// until then REDIRECT. It is decided for each family by each Commit, and stays DNAT while the node keeps the address,
	// since interfaces of pods come and go. The zero value means the same.
	TargetAuto Target = "auto"
	// TargetRedirect is always REDIRECT.
	TargetRedirect Target = "redirect"
	// TargetDNAT is DNAT wherever the node has an address of the family to translate to.
	TargetDNAT Target = "dnat"
)

// device is an interface that packets can come in by, with its usable addresses of one family. Link-local IPv6 addresses
// do not count: kernels redirect to them, but then a UDP answer finds no way back unless it names the interface, and
// DNAT spares the proxy that.
type device struct {
	index int
	addrs []netip.Addr
}

// network is what the choice of a target depends on, for one family.
type network struct {
	devices  []device // up, neither loopback nor enslaved, in the order of their index
	loopback []netip.Addr
	uplink   int // index of the device of the default route; 0: none
	// outward is the uplink's name if nothing but other machines is behind it; "" if there is none, or if it is a bridge, which
	// may have pods of this node on it.
	outward string
}

// translateTo returns the address that rules of a family must translate to, given the one that they translate to now.
// The zero value means REDIRECT.
func (t Target) translateTo(n network, now netip.Addr) netip.Addr {
	if t == TargetRedirect {
		return netip.Addr{}
	}
	if n.has(now) {
		return now
	}
	bare := false
	var uplink, first netip.Addr
	for _, d := range n.devices {
		if len(d.addrs) == 0 {
			bare = true
			continue
		}
		if !first.IsValid() {
			first = d.addrs[0]
		}
		if d.index == n.uplink {
			uplink = d.addrs[0]
		}
	}
	switch {
	case t != TargetDNAT && !bare:
		return netip.Addr{}
	case uplink.IsValid():
		return uplink
	case first.IsValid():
		return first
	case len(n.loopback) > 0: // a node whose only address is a routed one on lo
		return n.loopback[0]
	}
	return netip.Addr{}
}

// has reports whether the node can be reached at a.
func (n network) has(a netip.Addr) bool {
	return slices.Contains(n.loopback, a) ||
		slices.ContainsFunc(n.devices, func(d device) bool { return slices.Contains(d.addrs, a) })
}

// readNetwork reads the node's interfaces. A dump that was interrupted by a change, as when pods come and go, is read again.
func readNetwork(v6 bool) (n network, err error) {
	for range 10 {
		if n, err = dumpNetwork(v6); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return n, err
}

func dumpNetwork(v6 bool) (network, error) {
	family, name := netlink.FAMILY_V4, "IPv4"
	if v6 {
		family, name = netlink.FAMILY_V6, "IPv6"
	}
	links, err := netlink.LinkList()
	if err != nil {
		return network{}, fmt.Errorf("listing interfaces: %w", err)
	}
	all, err := netlink.AddrList(nil, family)
	if err != nil {
		return network{}, fmt.Errorf("listing %s addresses: %w", name, err)
	}
	routes, err := netlink.RouteList(nil, family)
	if err != nil {
		return network{}, fmt.Errorf("listing %s routes: %w", name, err)
	}
	byLink := map[int][]netip.Addr{}
	for _, a := range all {
		if addr, ok := usable(a); ok {
			byLink[a.LinkIndex] = append(byLink[a.LinkIndex], addr)
		}
	}
	var n network
	for _, l := range links { // the kernel lists them by index
		a := l.Attrs()
		switch {
		case a.Flags&net.FlagLoopback != 0:
			n.loopback = append(n.loopback, byLink[a.Index]...)
		case a.Flags&net.FlagUp != 0 && a.MasterIndex == 0:
			n.devices = append(n.devices, device{a.Index, byLink[a.Index]})
		}
	}
	metric := -1
	for _, r := range routes {
		if whole := r.Dst == nil || r.Dst.IP.IsUnspecified(); whole && (metric < 0 || r.Priority < metric) {
			n.uplink, metric = r.LinkIndex, r.Priority
			if r.LinkIndex == 0 && len(r.MultiPath) > 0 {
				n.uplink = r.MultiPath[0].LinkIndex
			}
		}
	}
	for _, l := range links {
		if l.Attrs().Index == n.uplink && l.Type() != "bridge" {
			n.outward = l.Attrs().Name
		}
	}
	return n, nil
}

// usable returns an address that packets can be translated to. Addresses that wait for duplicate address detection drop
// them; temporary ones (RFC 8981) go away again.
func usable(a netlink.Addr) (netip.Addr, bool) {
	const unsteady = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED
	addr, ok := netip.AddrFromSlice(a.IP)
	addr = addr.Unmap()
	if !ok || addr.IsLoopback() || addr.IsLinkLocalUnicast() && addr.Is6() {
		return netip.Addr{}, false
	}
	// In IPv4 the flag of temporary addresses means "secondary", which is as good as any.
	if addr.Is6() && a.Flags&(unsteady|unix.IFA_F_TEMPORARY) != 0 {
		return netip.Addr{}, false
	}
	return addr, true
}
