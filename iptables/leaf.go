package iptables

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"redial/proxy/intercept"
)

// discardPort is where rules lead the packets that are to be dropped, since the nat table itself cannot drop. The filter
// table then drops what was translated to this port, and nothing else, so that a real discard server (RFC 863) is not
// touched. It must be a port: the other mark that both tables see, the packet's own, would take a bit away from others.
// Where there is no filter table, nobody listening there makes the kernel refuse, which is the next best thing: the packet
// must not go on to wherever the network leads.
const discardPort = 9

// leaf is what one binding becomes: the rule in the tree, and the chains that it leads to.
type leaf struct {
	vip  intercept.VIP
	rule string
	// chains are the binding's own; none if the rule says it all.
	chains []chain
	// closed: clients from elsewhere are all dropped.
	closed bool
	// ranged: clients outside of ranges are dropped.
	ranged bool
}

// drops reports whether the filter table must drop for l.
func (l leaf) drops() bool { return l.closed || l.ranged }

// trial holds all the matches and targets of l, in rules that do not need its chains: those may be in use.
func (l leaf) trial() []string {
	rules := []string{l.rule}
	for _, c := range l.chains {
		rules = append(rules, c.rules...)
	}
	for i, r := range rules {
		if at := strings.LastIndex(r, " -j "+prefix); at >= 0 && len(l.chains) > 0 { // or it is in a comment
			rules[i] = r[:at]
		}
	}
	return rules
}

// text tells whether l is still the same.
func (l leaf) text() string { return strings.Join(l.trial(), "\n") }

// nowhere is the zero value of a listener.
var nowhere netip.AddrPort

// leaf renders one binding, in the form that sift gives it.
//
// Who may come in is asked first, and of everybody: pods are no exception, as with kube-proxy. Then clients on this node
// part from the others.
func (l layout) leaf(b intercept.Binding) leaf {
	var buffer [192]byte // which most rules fit in
	rule := matchVIP(buffer[:0], b)
	out := leaf{vip: b.VIP, closed: b.Listen == nowhere, ranged: b.Sources != nil}
	if b.Local == nowhere && b.Sources == nil {
		out.rule = string(l.appendHandOver(rule, b.Listen))
		return out
	}

	// REDIRECT and DNAT to a port ask for the protocol in their own rule.
	end := func(listener netip.AddrPort) string {
		return fmt.Sprintf("-p %s %s", b.VIP.Protocol, l.handOver(listener))
	}
	var parting []string // of clients on this node from others
	if b.Local != nowhere {
		parting = append(parting, fmt.Sprintf("-p %s -m addrtype --src-type LOCAL %s", b.VIP.Protocol, l.handOver(b.Local)))
		named := only(l.pods, func(p intercept.PodSource) bool { return !byPrefix(p) })
		ranges := only(l.pods, byPrefix)
		for _, p := range named {
			parting = append(parting, "-i "+p.Interface+" "+end(b.Local)) // matches nothing in OUTPUT
		}
		if l.outward != "" && len(ranges) > 0 {
			// A prefix may be that of all pods. Those of other nodes come in from outside, if they come as they are.
			parting = append(parting, "-i "+l.outward+" "+end(b.Listen))
		}
		for _, p := range ranges {
			parting = append(parting, "-s "+p.Prefix.String()+" "+end(b.Local))
		}
	}
	parting = append(parting, end(b.Listen))

	first := ownChain("VIP", b.VIP)
	out.rule = string(rule) + "-j " + first
	if b.Sources == nil {
		out.chains = []chain{{first, parting}}
		return out
	}
	admitted, second := end(b.Listen), ownChain("IN", b.VIP)
	target := l.handOver(b.Listen)
	if b.Local != nowhere {
		target = "-j " + second
		admitted = target
	}
	var admission []string
	if !b.VIP.NodePort() && l.admitsNode(b.Sources) {
		// Where the VIP is one of the node's addresses, the node's own packets to it come from it. The protocol is before the match,
		// as iptables-save has it.
		admission = append(admission, fmt.Sprintf("-s %s -p %s -m addrtype --src-type LOCAL %s", single(b.VIP.Addr), b.VIP.Protocol, target))
	}
	for _, s := range b.Sources {
		admission = append(admission, fmt.Sprintf("-s %s %s", s, admitted))
	}
	out.chains = []chain{{first, append(admission, end(nowhere))}}
	if b.Local != nowhere {
		out.chains = append(out.chains, chain{second, parting})
	}
	return out
}

// matchVIP appends what packets to the VIP have in common. It is done for every VIP whenever one of them changes, so it has
// better be quick.
func matchVIP(rule []byte, b intercept.Binding) []byte {
	if !b.VIP.NodePort() {
		rule = append(single(b.VIP.Addr).AppendTo(append(rule, "-d "...)), ' ')
	}
	protocol := b.VIP.Protocol.String()
	rule = append(append(append(append(rule, "-p "...), protocol...), " -m "...), protocol...)
	rule = append(strconv.AppendUint(append(rule, " --dport "...), uint64(b.VIP.Port), 10), ' ')
	if c := comment(b.Owner); c != "" {
		rule = append(append(append(rule, "-m comment --comment \""...), c...), "\" "...)
	}
	return rule
}

// handOver renders the target that leads to a listener, or to nowhere.
func (l layout) handOver(listener netip.AddrPort) string {
	return string(l.appendHandOver(nil, listener))
}

func (l layout) appendHandOver(rule []byte, listener netip.AddrPort) []byte {
	port := portOf(listener)
	if l.target.IsValid() {
		return netip.AddrPortFrom(l.target, port).AppendTo(append(rule, "-j DNAT --to-destination "...))
	}
	return strconv.AppendUint(append(rule, "-j REDIRECT --to-ports "...), uint64(port), 10)
}

// portOf returns the port that packets for a listener are translated to.
func portOf(listener netip.AddrPort) uint16 {
	if listener == nowhere {
		return discardPort
	}
	return listener.Port()
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func byPrefix(p intercept.PodSource) bool { return p.Interface == "" }

// admitsNode reports whether one of the node's own addresses is within ranges.
func (l layout) admitsNode(ranges []netip.Prefix) bool {
	return slices.ContainsFunc(l.node, within(ranges))
}

// within returns the test for being in one of ranges.
func within(ranges []netip.Prefix) func(netip.Addr) bool {
	return func(a netip.Addr) bool {
		return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
	}
}

// ownChain names a chain of one binding after a hash of its VIP: spelled out it might be too long.
func ownChain(purpose string, v intercept.VIP) string {
	sum := sha256.Sum256([]byte(v.String()))
	return prefix + purpose + "-" + hex.EncodeToString(sum[:8])
}

// maxComment is half of what the comment match holds, and below what native nftables comments hold (128), which
// iptables-nft may come to use.
const maxComment = 120

// comment makes any text safe to stand between double quotes in the input of iptables-restore.
func comment(owner string) string {
	unsafe := func(r rune) bool { return r < ' ' || r > '~' || strings.ContainsRune("\"'`\\", r) }
	if len(owner) <= maxComment && strings.IndexFunc(owner, unsafe) < 0 {
		return strings.TrimSpace(owner)
	}
	var b strings.Builder
	for _, r := range owner {
		switch {
		case b.Len() >= maxComment:
			return strings.TrimSpace(b.String())
		case unsafe(r):
			b.WriteByte('_')
		default:
			b.WriteByte(byte(r))
		}
	}
	return strings.TrimSpace(b.String())
}
