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
	healthChain     = prefix + "HEALTH"
	scratchChain    = prefix + "SCRATCH"
)

// table is one table of a family and what we want in it. Without chains there are no hooks either.
type table struct {
	name   string
	chains []chain
}

// stale names the chains of now that t lacks.
func (t table) stale(now image) []string {
	var gone []string
	for name := range now.chains {
		if !slices.ContainsFunc(t.chains, func(c chain) bool { return c.name == name }) {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	return gone
}

// ruleset is all we want in one family.
type ruleset struct{ filter, nat table }

// tables returns the tables in the order of writing: traffic must not be steered to ports that a host firewall still
// drops.
func (r ruleset) tables() []table { return []table{r.filter, r.nat} }

// drops reports whether the filter table drops what rules lead to the discard port.
func (r ruleset) drops() bool {
	return slices.ContainsFunc(r.filter.chains, func(c chain) bool {
		return slices.ContainsFunc(c.rules, func(rule string) bool { return strings.HasSuffix(rule, "-j DROP") })
	})
}

// layout is what the rules of one family depend on besides the bindings.
type layout struct {
	v6   bool
	mark uint32
	// ports are the proxy ports to guard; the zero value means none.
	ports intercept.PortRange
	// target is the address to translate to; the zero value means REDIRECT.
	target netip.Addr
	// pods are those sources that are of the family: prefixes in canonical form, and interfaces.
	pods []intercept.PodSource
	// outward is the interface that packets of other nodes' pods come in by, where their addresses are not translated; ""
	// means that it is not known.
	outward string
	// node holds the node's own addresses. Only bindings with Sources depend on them.
	node []netip.Addr
	// nodePorts say where NodePorts are open.
	nodePorts nodePorts
	// healthChecks are the TCP ports to let in, sorted.
	healthChecks []uint16
}

// render lays out the rules of one family. It sorts leaves, which may come in any order, and else is a pure function.
func (l layout) render(leaves []leaf) ruleset {
	return ruleset{
		filter: table{"filter", l.renderFilter(slices.ContainsFunc(leaves, leaf.drops))},
		nat:    table{"nat", l.renderNat(leaves)},
	}
}

func (l layout) renderNat(leaves []leaf) []chain {
	slices.SortFunc(leaves, func(a, b leaf) int { return compareVIPs(a.vip, b.vip) })
	// The unspecified address sorts first.
	split := 0
	for split < len(leaves) && leaves[split].vip.NodePort() {
		split++
	}
	nodePorts, services := leaves[:split], leaves[split:]

	prerouting := chain{name: preroutingChain}
	if !l.v6 {
		// A neighbour can route 127.0.0.1 to us, and translating such a packet would save it from the martian check. The
		// kernel drops ::1 from outside before this hook.
		prerouting.rules = append(prerouting.rules, "-d 127.0.0.0/8 -j RETURN")
	}
	prerouting.rules = append(prerouting.rules, "-j "+servicesChain)
	output := chain{name: outputChain}
	if l.mark != 0 {
		output.rules = append(output.rules, fmt.Sprintf("-m mark --mark %#x/%#x -j RETURN", l.mark, l.mark))
	}
	output.rules = append(output.rules, "-j "+servicesChain)

	t := &tree{chains: []chain{prerouting, output}}
	root := t.add(servicesChain)
	t.byAddress(root, services)
	// After the VIPs: an external address may be one of the node's.
	if jumps := l.nodePorts.jumps(); len(nodePorts) > 0 && len(jumps) > 0 {
		t.chains[root].rules = append(t.chains[root].rules, jumps...)
		t.byProtocol(t.add(nodePortsChain), nodePortsChain, nodePorts)
	}
	return t.chains
}

// renderFilter guards the proxy ports: whoever came through a rule is let in whatever the policy of INPUT says, whoever
// comes directly would get around source ranges and traffic policies and is refused. Only the first packet of a
// connection is refused, and only the client's direction is let in: a local client's ephemeral port may lie in the
// range, and replies to it are none of our business.
//
// If some rule drops, what it led to the discard port ends here, before it is let in anywhere.
//
// TCP packets of the node itself are dropped on their way out already: come as far as INPUT, they would have a connection
// tracking entry that leads all their repetitions to the discard port, and the client would not be heard again for minutes
// after the rules have changed. Packets from outside are dropped before they have one. UDP must wait for INPUT, since a
// datagram that is dropped in OUTPUT is an error to its sender; its entries are deleted when rules change.
//
// Health checks are let in before the guard. Every packet that comes to this node passes here, so that one rule keeps those
// away from theirs that cannot be meant.
func (l layout) renderFilter(drops bool) []chain {
	c, out := chain{name: inputChain}, chain{name: outputChain}
	unreachable := "icmp-port-unreachable"
	if l.v6 {
		unreachable = "icmp6-port-unreachable"
	}
	const translated = "-m conntrack --ctstate DNAT --ctdir ORIGINAL"
	protocols := []struct{ name, refusal string }{{"tcp", "tcp-reset"}, {"udp", unreachable}}
	if drops {
		for _, p := range protocols {
			c.rules = append(c.rules, fmt.Sprintf("-p %s -m %s --dport %d %s -j DROP", p.name, p.name, discardPort, translated))
		}
		// Others may translate to this port of another machine.
		out.rules = []string{fmt.Sprintf("-p tcp -m tcp --dport %d -m addrtype --dst-type LOCAL %s -j DROP", discardPort, translated)}
	}
	if n := len(l.healthChecks); n > 0 {
		c.rules = append(c.rules, fmt.Sprintf("-p tcp -m tcp --dport %s -j %s", dports(l.healthChecks[0], l.healthChecks[n-1]), healthChain))
	}
	if l.ports.Size() > 0 {
		for _, p := range protocols {
			match := fmt.Sprintf("-p %s -m %s --dport %s", p.name, p.name, dports(l.ports.First, l.ports.Last))
			c.rules = append(c.rules,
				match+" "+translated+" -j ACCEPT",
				match+" -m conntrack --ctstate NEW -m conntrack ! --ctstate DNAT -j REJECT --reject-with "+p.refusal)
		}
	}
	if len(c.rules) == 0 {
		return nil
	}
	if len(l.healthChecks) == 0 {
		return []chain{c, out}
	}
	health := chain{name: healthChain}
	for _, port := range l.healthChecks {
		health.rules = append(health.rules, fmt.Sprintf("-p tcp -m tcp --dport %d -j ACCEPT", port))
	}
	return []chain{c, out, health}
}

// dports renders a range of ports as iptables-save does.
func dports(first, last uint16) string {
	if first == last {
		return fmt.Sprint(first)
	}
	return fmt.Sprintf("%d:%d", first, last)
}

// compareVIPs is the order of rules: address, protocol, port.
func compareVIPs(a, b intercept.VIP) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// restoreInput writes t as input of iptables-restore --noflush: naming a chain creates or empties it. Chains in gone are
// emptied and deleted; the deletions come last, when nothing of ours refers to them any more. Jumps in missing are put first
// in their chains: by themselves each would have a program read 30,000 rules again.
func restoreInput(t table, gone []string, missing ...hook) string {
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
	for _, h := range missing {
		fmt.Fprintf(&b, "-I %s 1 -m comment --comment \"%s\" -j %s\n", h.from, hookComment, h.to)
	}
	for _, name := range gone {
		fmt.Fprintf(&b, "-X %s\n", name)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}
