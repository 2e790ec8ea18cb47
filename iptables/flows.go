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
// are in (before, they could come back at once).
//
// Of TCP only the entries of clients that have had no answer yet contradict the rules: their SYN came when there was no
// rule, and its repetitions, as well as those of a later connection from the same port, within two minutes, would go the
// same way to nobody. Others end by themselves: their clients notice, and connect anew.

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
	lay layout
	// now are the bindings in force, before those that flows of UDP were last held against; both sorted by VIP.
	now, before []intercept.Binding
	local       map[netip.Addr]bool
}

// course is where the flows of one binding should go.
type course struct {
	intercept.Binding
	// changed: earlier rules may have led them elsewhere.
	changed bool
}

// newSteering describes what the rules do to flows. before is what those of UDP were last held against; nil: unknown.
func newSteering(now intercept.State, before *intercept.State, lay layout, local []netip.Addr) steering {
	s := steering{lay: lay, now: now.Bindings, local: map[netip.Addr]bool{}}
	if before != nil && slices.Equal(before.Pods, now.Pods) {
		s.before = before.Bindings
	}
	for _, a := range local {
		s.local[a] = true
	}
	return s
}

// course finds the binding of a VIP.
func (s steering) course(v intercept.VIP) (course, bool) {
	find := func(sorted []intercept.Binding) (b intercept.Binding, found bool) {
		i, found := slices.BinarySearchFunc(sorted, v, func(b intercept.Binding, v intercept.VIP) int { return compareVIPs(b.VIP, v) })
		if found {
			b = sorted[i]
		}
		return b, found
	}
	b, found := find(s.now)
	was, known := find(s.before)
	return course{b, !known || !was.Equal(b)}, found
}

// stale reports whether a flow contradicts the rules: it goes to a VIP but not to its listener, or it goes to a proxy
// port for an address that is no VIP any more. Where a flow really goes shows in the source of its replies.
//
// The proxy's own flows to a backend that is a VIP as well are taken for stale. They pass by the rules by their mark, so
// they come back as they were.
func (s steering) stale(f *netlink.ConntrackFlow) bool {
	protocol := intercept.Protocol(f.Forward.Protocol)
	if protocol != intercept.UDP && !(protocol == intercept.TCP && unanswered(f)) {
		return false
	}
	to, end := address(f.Forward.DstIP), f.Reverse.SrcPort
	here := s.isLocal(address(f.Reverse.SrcIP))
	vip := intercept.VIP{Addr: to, Port: f.Forward.DstPort, Protocol: protocol}
	c, steered := s.course(vip)
	if !steered && s.isLocal(to) && s.lay.nodePorts.open(to) {
		vip.Addr = wildcard(to.Is6(), 0).Addr()
		c, steered = s.course(vip)
	}
	if steered {
		return !here || !s.follows(c, address(f.Forward.SrcIP), end)
	}
	return here && end != f.Forward.DstPort && (s.lay.ports.Contains(end) || end == discardPort)
}

// unanswered reports whether nothing but SYNs of the client has been seen of a TCP connection.
func unanswered(f *netlink.ConntrackFlow) bool {
	const synSent = 1 // TCP_CONNTRACK_SYN_SENT of the kernel's nf_conntrack_tcp.h
	info, ok := f.ProtoInfo.(*netlink.ProtoInfoTCP)
	return ok && info.State == synSent
}

// follows reports whether a flow of a client that goes to port keeps to c. An entry does not tell the interface that its
// packets came in by. So a client that may be a pod by its interface can be right at either listener, unless there are
// new rules: then it is better to ask them, which costs a client that was right nothing but the search.
func (s steering) follows(c course, client netip.Addr, port uint16) bool {
	if c.Sources != nil && !within(c.Sources)(client) &&
		!(client == c.VIP.Addr && s.isLocal(client) && s.lay.admitsNode(c.Sources)) {
		return port == discardPort
	}
	if c.Local == nowhere {
		return port == portOf(c.Listen)
	}
	unknown := false
	for _, p := range s.lay.pods {
		if p.Prefix.IsValid() && p.Prefix.Contains(client) {
			if s.lay.outward == "" {
				return port == c.Local.Port()
			}
			unknown = true
		}
		unknown = unknown || p.Interface != ""
	}
	switch {
	case s.isLocal(client):
		return port == c.Local.Port()
	case unknown:
		return !c.changed && (port == c.Local.Port() || port == portOf(c.Listen))
	}
	return port == portOf(c.Listen)
}

func (s steering) isLocal(a netip.Addr) bool { return s.local[a] || a.IsLoopback() }

func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// tidyFlows deletes stale flows of a family if what is in force for UDP is not what it was the last time, or if rules were
// written now: whatever they were written for, one may have been missing before, and a flow have begun without it. What
// fails is tried again with the next Commit, for which Verify asks.
func (r *Rules) tidyFlows(inForce intercept.State, lay layout, wrote bool) {
	v6 := lay.v6
	udp := inForce
	udp.Bindings = only(inForce.Bindings, func(b intercept.Binding) bool { return b.VIP.Protocol == intercept.UDP })
	udp = clone(udp)
	// The first time also for no bindings at all: an earlier process may have left flows.
	done := r.tidiedFlows[v6]
	if done != nil && (len(done.Bindings)+len(inForce.Bindings) == 0 || !wrote && done.Equal(udp)) {
		return
	}
	delete(r.tidiedFlows, v6)
	local, err := localAddresses()
	var n uint
	if err == nil {
		n, err = r.flows.remove(v6, newSteering(inForce, done, lay, local).stale)
	}
	r.flowsRemoved[v6] += n
	if err != nil {
		err = fmt.Errorf("deleting stale flows from connection tracking: %w", err)
		if r.flowsErr[v6] == nil {
			r.cfg.Log.WithError(err).Warn("clients that keep their port may miss a change of Services; trying again")
		}
	} else {
		r.tidiedFlows[v6] = &udp
		if n > 0 {
			r.cfg.Log.WithField("flows", n).Info("stale flows deleted from connection tracking")
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
