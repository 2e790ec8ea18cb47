package iptables

import (
	"fmt"
	"net/netip"
	"slices"

	"redial/proxy/intercept"
)

// nodePorts says at which addresses of the node NodePorts of one family are open. The rules ask the kernel whether an
// address is the node's, so one that comes later needs no rule.
type nodePorts struct {
	loopback netip.Prefix   // of the family
	at       []netip.Prefix // canonical
	// closedLoopback: not at loopback, though at says so.
	closedLoopback bool
}

func newNodePorts(v6 bool, want intercept.State) nodePorts {
	all := netip.PrefixFrom(wildcard(v6, 0).Addr(), 0)
	n := nodePorts{loopback: netip.MustParsePrefix("127.0.0.0/8"), at: []netip.Prefix{all}}
	if v6 {
		n.loopback = netip.MustParsePrefix("::1/128")
	}
	if want.NodePorts != nil {
		n.at = ofFamily(v6, want.NodePorts)
	}
	if want.NoLocalhostNodePorts {
		n.at = slices.DeleteFunc(n.at, func(p netip.Prefix) bool { return n.loopback.Overlaps(p) && n.loopback.Bits() <= p.Bits() })
		n.closedLoopback = slices.ContainsFunc(n.at, n.loopback.Overlaps)
	}
	return n
}

// jumps renders the rules that lead to NodePorts; none if they are open nowhere.
func (n nodePorts) jumps() []string {
	var rules []string
	if n.closedLoopback {
		rules = append(rules, fmt.Sprintf("-d %s -j RETURN", n.loopback))
	}
	for _, p := range n.at {
		match := ""
		if p.Bits() > 0 {
			match = fmt.Sprintf("-d %s ", p)
		}
		rules = append(rules, match+"-m addrtype --dst-type LOCAL -j "+nodePortsChain)
	}
	return rules
}

// open reports whether NodePorts are open at an address of the node.
func (n nodePorts) open(a netip.Addr) bool {
	return within(n.at)(a) && !(n.closedLoopback && n.loopback.Contains(a))
}

// ofFamily returns those of prefixes that are of one family, in canonical form, sorted, each once. What is no prefix is
// of none.
func ofFamily(v6 bool, prefixes []netip.Prefix) []netip.Prefix {
	out := []netip.Prefix{}
	for _, p := range prefixes {
		if p.IsValid() && p.Addr().Is6() == v6 && !p.Addr().Is4In6() {
			out = append(out, p.Masked())
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}
