package local

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// protocol tells our routes. Nobody in iproute2's rt_protos, nor any routing daemon of FRR, BIRD or Cilium, has it.
	protocol = 214
	// metric is worse than the 0 of the kernel's own entries for the addresses that interfaces have.
	metric = 1024
	// loopback is the index of lo in each network namespace (LOOPBACK_IFINDEX).
	loopback = 1
	// scratchTable is one that no routing rule of anybody's looks at; for probing.
	scratchTable = 0x52444c
)

// table is what there is of one family.
type table struct {
	ours   map[netip.Prefix]netip.Addr // our routes, with their sources
	strays []route                     // routes of ours that are not as we write them now, or that a probe left
	// What others have made local: single addresses, those of interfaces included, and ranges.
	hosts  map[netip.Addr]bool
	ranges []netip.Prefix
	// networks are other destinations that packets are sent to, the default route aside.
	networks []network
	gateways map[netip.Addr]bool
	addrs    []address
	uplink   int // index of the interface of the default route; 0: none
}

// network is a destination of a route.
type network struct {
	prefix    netip.Prefix
	device    string
	onLink    bool // of IPv4: whoever has an address in it is asked for by ARP
	arpIgnore int
}

// address is a usable one of an interface that is up.
type address struct {
	addr     netip.Addr
	device   int
	loopback bool
}

// route is one of ours.
type route struct {
	prefix                netip.Prefix
	table, device, metric int
}

func ourRoute(p netip.Prefix) route {
	return route{prefix: p, table: unix.RT_TABLE_LOCAL, metric: metric}
}

// routing is the kernel's, or a test's.
type routing interface {
	read(v6 bool) (table, error)
	// set adds a route to the table local, or replaces ours.
	set(p netip.Prefix, source netip.Addr, replace bool) error
	// remove deletes one of ours; ESRCH: there is none.
	remove(route) error
	// try adds a route where it has no effect, and removes it.
	try(v6 bool) error
}

// kernel is this network namespace's. Its zero value opens a socket for each request; with a handle, one is kept.
type kernel struct{ h *netlink.Handle }

func newKernel() (kernel, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return kernel{}, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return kernel{h}, nil
}

func (k kernel) handle() *netlink.Handle {
	if k.h == nil {
		return &netlink.Handle{}
	}
	return k.h
}

// read lists again when something changed meanwhile: then the listing may have holes, and the kernel says so.
func (k kernel) read(v6 bool) (t table, err error) {
	for range 10 {
		if t, err = k.readTable(v6); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return t, err
}

func (k kernel) readTable(v6 bool) (table, error) {
	family := netlink.FAMILY_V4
	if v6 {
		family = netlink.FAMILY_V6
	}
	t := table{ours: map[netip.Prefix]netip.Addr{}, hosts: map[netip.Addr]bool{}, gateways: map[netip.Addr]bool{}}
	links, err := k.handle().LinkList()
	if err != nil {
		return table{}, fmt.Errorf("listing interfaces: %w", err)
	}
	byIndex := map[int]*netlink.LinkAttrs{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l.Attrs()
	}
	addrs, err := k.handle().AddrList(nil, family)
	if err != nil {
		return table{}, fmt.Errorf("listing addresses: %w", err)
	}
	for _, a := range addrs {
		// The kernel writes the local route of an IPv6 address some time after the address (addrconf_dad_work).
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			t.hosts[addr.Unmap()] = true
		}
		if l := byIndex[a.LinkIndex]; l != nil && l.Flags&net.FlagUp != 0 {
			if addr, ok := usable(a); ok {
				t.addrs = append(t.addrs, address{addr, a.LinkIndex, l.Flags&net.FlagLoopback != 0})
			}
		}
	}
	best := -1
	collect := func(r netlink.Route) bool {
		p, ok := destination(r, v6)
		if !ok {
			return true
		}
		l := byIndex[r.LinkIndex]
		switch {
		case r.Protocol == protocol && r.Table == unix.RT_TABLE_LOCAL && r.Type == unix.RTN_LOCAL && r.Priority == metric && r.LinkIndex == loopback:
			source, _ := netip.AddrFromSlice(r.Src)
			t.ours[p] = source.Unmap()
		case r.Protocol == protocol && r.Type == unix.RTN_LOCAL && (r.Table == unix.RT_TABLE_LOCAL || r.Table == scratchTable):
			t.strays = append(t.strays, route{p, r.Table, r.LinkIndex, r.Priority})
		case r.Type == unix.RTN_LOCAL && r.Table == unix.RT_TABLE_LOCAL && p.IsSingleIP():
			t.hosts[p.Addr()] = true
		case r.Type == unix.RTN_LOCAL && r.Table == unix.RT_TABLE_LOCAL:
			t.ranges = append(t.ranges, p)
		case r.Type == unix.RTN_UNICAST && p.Bits() == 0:
			t.addGateways(r)
			if r.Table == unix.RT_TABLE_MAIN && (best < 0 || r.Priority < best) {
				t.uplink, best = r.LinkIndex, r.Priority
				if r.LinkIndex == 0 && len(r.MultiPath) > 0 {
					t.uplink = r.MultiPath[0].LinkIndex
				}
			}
		case r.Type == unix.RTN_UNICAST && !p.Addr().IsLinkLocalUnicast():
			t.addGateways(r)
			n := network{prefix: p}
			if l != nil {
				n.device = l.Name
				if n.onLink = !v6 && r.Scope == netlink.SCOPE_LINK && l.RawFlags&(unix.IFF_NOARP|unix.IFF_LOOPBACK) == 0; n.onLink {
					n.arpIgnore = arpIgnore(l.Name)
				}
			}
			t.networks = append(t.networks, n)
		}
		return true
	}
	all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	err = k.handle().RouteListFilteredIter(family, all, netlink.RT_FILTER_TABLE, collect)
	return t, err
}

func (t *table) addGateways(r netlink.Route) {
	gateways := []net.IP{r.Gw}
	for _, hop := range r.MultiPath {
		gateways = append(gateways, hop.Gw)
	}
	for _, g := range gateways {
		if a, ok := netip.AddrFromSlice(g); ok {
			t.gateways[a.Unmap()] = true
		}
	}
}

func destination(r netlink.Route, v6 bool) (netip.Prefix, bool) {
	if r.Dst == nil { // the default route, as some kernels and versions of the library tell it
		if v6 {
			return netip.PrefixFrom(netip.IPv6Unspecified(), 0), true
		}
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0), true
	}
	addr, ok := netip.AddrFromSlice(r.Dst.IP)
	bits, size := r.Dst.Mask.Size()
	if addr = addr.Unmap(); size == 128 && addr.Is4() {
		return netip.Prefix{}, false // ::ffff:0:0/96, which nobody's packets go to
	}
	return netip.PrefixFrom(addr, bits), ok
}

func (k kernel) set(p netip.Prefix, source netip.Addr, replace bool) error {
	r := localRoute(p, unix.RT_TABLE_LOCAL)
	if source.IsValid() {
		r.Src = source.AsSlice()
	}
	if replace {
		return k.handle().RouteReplace(r)
	}
	return k.handle().RouteAdd(r)
}

func (k kernel) remove(r route) error {
	del := localRoute(r.prefix, r.table)
	del.LinkIndex, del.Priority = r.device, r.metric
	return k.handle().RouteDel(del)
}

func (k kernel) try(v6 bool) error {
	p := netip.MustParsePrefix("192.0.2.1/32") // RFC 5737, RFC 3849
	if v6 {
		p = netip.MustParsePrefix("2001:db8::1/128")
	}
	r := localRoute(p, scratchTable)
	if err := k.handle().RouteReplace(r); err != nil {
		return err
	}
	return k.handle().RouteDel(r)
}

func localRoute(p netip.Prefix, table int) *netlink.Route {
	r := &netlink.Route{
		Dst:   &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
		Table: table, Type: unix.RTN_LOCAL, Protocol: protocol, LinkIndex: loopback, Priority: metric,
	}
	if p.Addr().Is4() {
		r.Scope = netlink.SCOPE_HOST
	}
	return r
}

// arpIgnore returns the effective setting: the kernel takes the greater of the two (IN_DEV_MAXCONF).
func arpIgnore(device string) int {
	value := 0
	for _, d := range []string{"all", device} {
		text, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + d + "/arp_ignore")
		if err != nil {
			continue // unknown counts as unset, which errs on the safe side
		}
		n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		value = max(value, n)
	}
	return value
}
