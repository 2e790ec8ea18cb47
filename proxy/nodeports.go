package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"redial/config"
)

// NodePortAddresses are the addresses of the node at which NodePorts are open. The zero value means all of them.
type NodePortAddresses struct {
	prefixes           []netip.Prefix
	primary, localhost bool
	all                bool
}

// The words that --nodeport-addresses knows besides CIDRs.
const (
	nodePortsPrimary   = "primary"
	nodePortsLocalhost = "localhost"
	nodePortsAll       = "all"
)

// ParseNodePortAddresses reads kube-proxy's --nodeport-addresses: CIDRs, "primary" for the first address of each family
// in the node's status, "localhost" for loopback addresses, "all". They add up; nothing at all means all. The error names
// every entry that is none of these.
func ParseNodePortAddresses(list []string) (NodePortAddresses, error) {
	var a NodePortAddresses
	var errs []error
	for _, entry := range list {
		switch entry = strings.TrimSpace(entry); entry {
		case nodePortsPrimary:
			a.primary = true
		case nodePortsLocalhost:
			a.localhost = true
		case nodePortsAll:
			a.all = true
		default:
			p, err := netip.ParsePrefix(entry)
			if err != nil || p.Addr().Is4In6() {
				errs = append(errs, fmt.Errorf("%q: want a CIDR such as 192.0.2.0/24, or %s, %s or %s",
					entry, nodePortsPrimary, nodePortsLocalhost, nodePortsAll))
				continue
			}
			a.prefixes = append(a.prefixes, p.Masked())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return NodePortAddresses{}, err
	}
	return a, nil
}

var (
	loopbacks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	whole     = map[config.Family]netip.Prefix{config.IPv4: netip.MustParsePrefix("0.0.0.0/0"), config.IPv6: netip.MustParsePrefix("::/0")}
)

// Warning tells what may surprise whoever chose these addresses; empty when nothing should.
func (a NodePortAddresses) Warning() string {
	var open []string
	for _, f := range config.Families {
		if a.forgets(f) {
			open = append(open, fmt.Sprintf("no %s CIDR is given, so NodePorts are open at all %s addresses: add one, or %s", f, f, whole[f]))
		}
	}
	return strings.Join(open, "; ")
}

// forgets reports whether nothing says anything of a family although something is said of the other: kube-proxy then
// leaves NodePorts open at all its addresses, and clusters rely on it.
func (a NodePortAddresses) forgets(f config.Family) bool {
	return !a.all && !a.primary && !a.localhost && len(a.prefixes) > 0 &&
		!slices.ContainsFunc(a.prefixes, func(p netip.Prefix) bool { return config.FamilyOf(p.Addr()) == f })
}

// Prefixes returns what [intercept.State] wants: nil for all addresses. "primary" is nothing in a family in which the node
// has no address, or none that is known yet.
func (a NodePortAddresses) Prefixes(node config.Node) []netip.Prefix {
	if a.all || !a.primary && !a.localhost && len(a.prefixes) == 0 {
		return nil
	}
	prefixes := append([]netip.Prefix{}, a.prefixes...)
	if a.localhost {
		prefixes = append(prefixes, loopbacks...)
	}
	complete := true
	for _, f := range config.Families {
		if a.forgets(f) {
			prefixes = append(prefixes, whole[f])
		}
		if addr, ok := primary(node, f); ok && a.primary {
			prefixes = append(prefixes, netip.PrefixFrom(addr, addr.BitLen()))
		}
		complete = complete && slices.Contains(prefixes, whole[f])
	}
	if complete {
		return nil
	}
	slices.SortFunc(prefixes, comparePrefixes)
	return slices.Compact(prefixes)
}

// primary is the first address of a family.
func primary(node config.Node, f config.Family) (netip.Addr, bool) {
	for _, a := range node.Addrs {
		if config.FamilyOf(a) == f {
			return a.Unmap().WithZone(""), true
		}
	}
	return netip.Addr{}, false
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
