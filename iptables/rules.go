package iptables

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"redial/proxy/intercept"
)

// prefix begins the names of all our chains, and of nobody else's.
const prefix = "REDIAL-"

const (
	preroutingChain = prefix + "PREROUTING"
	outputChain     = prefix + "OUTPUT"
	servicesChain   = prefix + "SERVICES"
	nodePortsChain  = prefix + "NODEPORTS"
	inputChain      = prefix + "INPUT"
	scratchChain    = prefix + "SCRATCH"
)

// table is one table of a family and what we want in it. Without chains there are no hooks either.
type table struct {
	name   string
	chains []chain
}

// ruleset is all we want in one family.
type ruleset struct{ filter, nat table }

// tables returns the tables in the order of writing: traffic must not be steered to ports that a host firewall still
// drops.
func (r ruleset) tables() []table { return []table{r.filter, r.nat} }

// render lays out the rules of one family. It is a pure function; leaves may come in any order.
func render(v6 bool, mark uint32, ports intercept.PortRange, leaves []leaf) ruleset {
	return ruleset{
		filter: table{"filter", renderFilter(v6, ports)},
		nat:    table{"nat", renderNat(v6, mark, leaves)},
	}
}

func renderNat(v6 bool, mark uint32, leaves []leaf) []chain {
	leaves = slices.SortedFunc(slices.Values(leaves), func(a, b leaf) int { return compareVIPs(a.vip, b.vip) })
	// The unspecified address sorts first.
	split := 0
	for split < len(leaves) && leaves[split].vip.NodePort() {
		split++
	}
	nodePorts, services := leaves[:split], leaves[split:]

	prerouting := chain{name: preroutingChain}
	if !v6 {
		// A neighbour can route 127.0.0.1 to us, and translating such a packet would save it from the martian check. The
		// kernel drops ::1 from outside before this hook.
		prerouting.rules = append(prerouting.rules, "-d 127.0.0.0/8 -j RETURN")
	}
	prerouting.rules = append(prerouting.rules, "-j "+servicesChain)
	output := chain{name: outputChain}
	if mark != 0 {
		output.rules = append(output.rules, fmt.Sprintf("-m mark --mark %#x/%#x -j RETURN", mark, mark))
	}
	output.rules = append(output.rules, "-j "+servicesChain)

	t := &tree{chains: []chain{prerouting, output}}
	root := t.add(servicesChain)
	t.byAddress(root, services)
	if len(nodePorts) > 0 {
		// After the VIPs: an external address may be one of the node's.
		t.rule(root, "-m addrtype --dst-type LOCAL -j %s", nodePortsChain)
		t.byProtocol(t.add(nodePortsChain), nodePortsChain, nodePorts)
	}
	return t.chains
}

// renderFilter guards the proxy ports: whoever came through a rule is let in whatever the policy of INPUT says, whoever
// comes directly would get around source ranges and traffic policies and is refused. Only the first packet of a
// connection is refused, and only the client's direction is let in: a local client's ephemeral port may lie in the
// range, and replies to it are none of our business.
func renderFilter(v6 bool, ports intercept.PortRange) []chain {
	if ports.Size() == 0 {
		return nil
	}
	unreachable := "icmp-port-unreachable"
	if v6 {
		unreachable = "icmp6-port-unreachable"
	}
	c := chain{name: inputChain}
	for _, p := range []struct{ protocol, refusal string }{{"tcp", "tcp-reset"}, {"udp", unreachable}} {
		match := fmt.Sprintf("-p %s -m %s --dport %d:%d", p.protocol, p.protocol, ports.First, ports.Last)
		c.rules = append(c.rules,
			match+" -m conntrack --ctstate DNAT --ctdir ORIGINAL -j ACCEPT",
			match+" -m conntrack --ctstate NEW -m conntrack ! --ctstate DNAT -j REJECT --reject-with "+p.refusal)
	}
	return []chain{c}
}

// newLeaf renders the rule of one binding. to is the address to translate to; the zero value means REDIRECT.
func newLeaf(b intercept.Binding, to netip.Addr) leaf {
	var rule strings.Builder
	if !b.VIP.NodePort() {
		fmt.Fprintf(&rule, "-d %s/%d ", b.VIP.Addr, b.VIP.Addr.BitLen())
	}
	fmt.Fprintf(&rule, "-p %s -m %s --dport %d ", b.VIP.Protocol, b.VIP.Protocol, b.VIP.Port)
	if c := comment(b.Owner); c != "" {
		fmt.Fprintf(&rule, "-m comment --comment \"%s\" ", c)
	}
	if to.IsValid() {
		fmt.Fprintf(&rule, "-j DNAT --to-destination %s", netip.AddrPortFrom(to, b.Listen.Port()))
	} else {
		fmt.Fprintf(&rule, "-j REDIRECT --to-ports %d", b.Listen.Port())
	}
	return leaf{b.VIP, rule.String()}
}

// maxComment is half of what the comment match holds, and below what native nftables comments hold (128), which
// iptables-nft may come to use.
const maxComment = 120

// comment makes any text safe to stand between double quotes in the input of iptables-restore.
func comment(owner string) string {
	var b strings.Builder
	for _, r := range owner {
		switch {
		case b.Len() >= maxComment:
			return strings.TrimSpace(b.String())
		case r < ' ' || r > '~' || strings.ContainsRune("\"'`\\", r):
			b.WriteByte('_')
		default:
			b.WriteByte(byte(r))
		}
	}
	return strings.TrimSpace(b.String())
}

// compareVIPs is the order of rules: address, protocol, port.
func compareVIPs(a, b intercept.VIP) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// restoreInput writes t as input of iptables-restore --noflush: naming a chain creates or empties it. Chains in gone are
// emptied and deleted; the deletions come last, when nothing of ours refers to them any more.
func restoreInput(t table, gone []string) string {
	if len(t.chains) == 0 && len(gone) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n", t.name)
	for _, c := range t.chains {
		fmt.Fprintf(&b, ":%s - [0:0]\n", c.name)
	}
	for _, name := range gone {
		fmt.Fprintf(&b, ":%s - [0:0]\n", name)
	}
	for _, c := range t.chains {
		for _, r := range c.rules {
			fmt.Fprintf(&b, "-A %s %s\n", c.name, r)
		}
	}
	for _, name := range gone {
		fmt.Fprintf(&b, "-X %s\n", name)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}
