package local

import (
	"cmp"
	"fmt"
	"net/netip"
)

// plan is which routes there should be.
type plan struct {
	want    map[netip.Prefix]bool
	refused map[netip.Addr]error
}

// plan decides how addresses become local, given what else there is.
func (f *family) plan(addrs []netip.Addr, cidrs []netip.Prefix) plan {
	p := plan{want: map[netip.Prefix]bool{}, refused: map[netip.Addr]error{}}
	var whole []netip.Prefix
	for _, c := range cidrs {
		if c.Addr().Is6() != f.v6 {
			continue
		}
		c = c.Masked()
		why := f.table.contradicts(c)
		if why != f.dubious[c] && why != "" {
			f.log.WithField("cidr", c).WithField("reason", why).Warn("the Service CIDR is not made local as a whole, each address is made so for itself")
		}
		f.dubious[c] = why
		if why == "" {
			whole = append(whole, c)
			p.want[c] = true
		}
	}
	for _, a := range addrs {
		if contains(whole, a) || f.table.local(a) {
			continue
		}
		if err := f.table.harmed(a); err != nil {
			p.refused[a] = err
			continue
		}
		p.want[netip.PrefixFrom(a, a.BitLen())] = true
	}
	return p
}

// contradicts returns why a Service CIDR must not be local as a whole: what the node reaches by a route of its own would
// become unreachable. Routes that only discard, as some network plug-ins make for the Service CIDR, do not count.
func (t *table) contradicts(cidr netip.Prefix) string {
	for _, n := range t.networks {
		if cidr.Bits() <= n.prefix.Bits() && cidr.Contains(n.prefix.Addr()) {
			return fmt.Sprintf("the node has a route to %s, which is a part of it", n.prefix)
		}
	}
	return ""
}

// local reports whether somebody else has made a local.
func (t *table) local(a netip.Addr) bool { return t.hosts[a] || contains(t.ranges, a) }

// harmed returns who would be harmed if a became local.
func (t *table) harmed(a netip.Addr) error {
	if t.gateways[a] {
		return fmt.Errorf("%s is a gateway of this node, which would lose it", a)
	}
	for _, n := range t.networks {
		if !n.onLink || !n.prefix.Contains(a) || n.prefix.Bits() == 0 || n.arpIgnore > 0 {
			continue
		}
		return fmt.Errorf("%s lies in the network of interface %s (%s): the node would answer ARP requests for it there, as would all the others, "+
			"and not reach the host that has it: set net.ipv4.conf.%s.arp_ignore to 1, or use an address that is routed to the node", a, n.device, n.prefix, n.device)
	}
	return nil
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
