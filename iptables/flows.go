package iptables

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"redial/proxy/intercept"
)

// A nat rule is asked for the first packet of a flow only; connection tracking repeats its answer for the rest. A UDP
// client that keeps its port and goes on sending therefore never meets a rule that was written, changed or removed
// meanwhile: it keeps its own entry alive. So entries that say otherwise than the rules do now are deleted once the rules
// are in (before, they could come back at once). TCP needs none of this: its clients notice, and connect anew.

// flowTable is the kernel's connection tracking table of one family.
type flowTable interface {
	// remove deletes the flows that stale says are, and returns how many.
	remove(v6 bool, stale func(*netlink.ConntrackFlow) bool) (uint, error)
}

type kernelFlows struct{}

type flowFilter func(*netlink.ConntrackFlow) bool

func (f flowFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool { return f(flow) }

func (kernelFlows) remove(v6 bool, stale func(*netlink.ConntrackFlow) bool) (uint, error) {
	family := netlink.InetFamily(unix.AF_INET)
	if v6 {
		family = unix.AF_INET6
	}
	return netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, flowFilter(stale))
}

// steering tells which flows are as the rules want them.
type steering struct {
	vips      map[netip.AddrPort]uint16 // the listener's port
	nodePorts map[uint16]uint16
	local     map[netip.Addr]bool
	proxy     intercept.PortRange
}

func newSteering(bindings []intercept.Binding, local []netip.Addr, proxy intercept.PortRange) steering {
	s := steering{vips: map[netip.AddrPort]uint16{}, nodePorts: map[uint16]uint16{}, local: map[netip.Addr]bool{}, proxy: proxy}
	for _, b := range bindings {
		if b.VIP.NodePort() {
			s.nodePorts[b.VIP.Port] = b.Listen.Port()
		} else {
			s.vips[netip.AddrPortFrom(b.VIP.Addr, b.VIP.Port)] = b.Listen.Port()
		}
	}
	for _, a := range local {
		s.local[a] = true
	}
	return s
}

// stale reports whether a flow contradicts the rules: it goes to a VIP but not to its listener, or it goes to a proxy
// port for an address that is no VIP any more. Where a flow really goes shows in the source of its replies.
//
// The proxy's own flows to a backend that is a VIP as well are taken for stale. They pass by the rules by their mark, so
// they come back as they were.
func (s steering) stale(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	to, from := address(f.Forward.DstIP), address(f.Reverse.SrcIP)
	want, steered := s.vips[netip.AddrPortFrom(to, f.Forward.DstPort)]
	if !steered && s.isLocal(to) {
		want, steered = s.nodePorts[f.Forward.DstPort]
	}
	if steered {
		return f.Reverse.SrcPort != want || !s.isLocal(from)
	}
	return s.proxy.Contains(f.Reverse.SrcPort) && f.Reverse.SrcPort != f.Forward.DstPort && s.isLocal(from)
}

func (s steering) isLocal(a netip.Addr) bool { return s.local[a] || a.IsLoopback() }

func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// tidyFlows deletes stale flows of a family if its UDP bindings are not those of the last time, or if rules were written
// now: whatever they were written for, one may have been missing before, and a flow have begun without it. What fails is
// tried again with the next Commit, for which Verify asks.
func (r *Rules) tidyFlows(v6 bool, bindings []intercept.Binding, wrote bool) {
	udp := slices.DeleteFunc(slices.Clone(bindings), func(b intercept.Binding) bool { return b.VIP.Protocol != intercept.UDP })
	// The first time also for no bindings at all: an earlier process may have left flows.
	if done, once := r.tidiedFlows[v6]; once && (len(done)+len(udp) == 0 || !wrote && slices.EqualFunc(done, udp, intercept.Binding.Equal)) {
		return
	}
	delete(r.tidiedFlows, v6)
	local, err := localAddresses()
	var n uint
	if err == nil {
		n, err = r.flows.remove(v6, newSteering(udp, local, r.cfg.ProxyPorts).stale)
	}
	r.flowsRemoved[v6] += n
	if err != nil {
		err = fmt.Errorf("deleting stale UDP flows from connection tracking: %w", err)
		if r.flowsErr[v6] == nil {
			r.cfg.Log.WithError(err).Warn("UDP clients that keep their port may miss a change of Services; trying again")
		}
	} else {
		r.tidiedFlows[v6] = udp
		if n > 0 {
			r.cfg.Log.WithField("flows", n).Info("stale UDP flows deleted from connection tracking")
		}
	}
	r.flowsErr[v6] = err
}

func localAddresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var local []netip.Addr
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			local = append(local, address(n.IP))
		}
	}
	return local, nil
}
