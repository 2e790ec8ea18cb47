package iptables

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/bits"
	"net/netip"
	"strings"
)

// fanout is the number of VIPs above which a chain is split, and the number of ways it is split.
const fanout = 16

// maxChainName is the longest name that the kernel takes (XT_EXTENSION_MAXNAMELEN less its terminator).
const maxChainName = 28

// chain is a chain of ours: its name and its rules, without the leading "-A name".
type chain struct {
	name  string
	rules []string
}

// tree collects the chains that a set of leaves is spread over. Leaves are always sorted by compareVIPs, so that those
// with a common prefix are neighbours and the first and the last tell what all have in common.
type tree struct{ chains []chain }

// add appends a chain and returns its index; the slice may move while its rules are still being collected.
func (t *tree) add(name string) int {
	t.chains = append(t.chains, chain{name: shorten(name)})
	return len(t.chains) - 1
}

func (t *tree) rule(at int, format string, args ...any) {
	t.chains[at].rules = append(t.chains[at].rules, fmt.Sprintf(format, args...))
}

// byAddress fills the chain at with leaves, splitting by address.
func (t *tree) byAddress(at int, leaves []leaf) {
	if len(leaves) <= fanout {
		t.list(at, leaves)
		return
	}
	first, last := leaves[0].vip.Addr, leaves[len(leaves)-1].vip.Addr
	if first == last {
		t.byProtocol(at, "REDIAL-"+nameOf(first), leaves)
		return
	}
	depth := commonBits(first, last)
	for group := range groups(leaves, func(l leaf) int { return nibble(l.vip.Addr, depth) }) {
		if len(group) == 1 {
			t.list(at, group)
			continue
		}
		prefix := netip.PrefixFrom(group[0].vip.Addr, commonBits(group[0].vip.Addr, group[len(group)-1].vip.Addr)).Masked()
		name := "REDIAL-" + nameOf(prefix.Addr())
		if !prefix.IsSingleIP() {
			name += fmt.Sprintf("_%d", prefix.Bits())
		}
		t.rule(at, "-d %s -j %s", prefix, shorten(name))
		t.byAddress(t.add(name), group)
	}
}

// byProtocol fills the chain at with leaves of one address, or with NodePorts. Children are named after base.
func (t *tree) byProtocol(at int, base string, leaves []leaf) {
	if len(leaves) <= fanout {
		t.list(at, leaves)
		return
	}
	whole := leaves[0].vip.Protocol == leaves[len(leaves)-1].vip.Protocol
	for group := range groups(leaves, func(l leaf) int { return int(l.vip.Protocol) }) {
		protocol := group[0].vip.Protocol
		name := base + "_" + protocol.String()[:1]
		switch {
		case whole:
			t.byPort(at, name, group)
		case len(group) == 1:
			t.list(at, group)
		default:
			t.rule(at, "-p %s -j %s", protocol, shorten(name))
			t.byPort(t.add(name), name, group)
		}
	}
}

// byPort fills the chain at with leaves that differ in nothing but the port.
func (t *tree) byPort(at int, base string, leaves []leaf) {
	if len(leaves) <= fanout {
		t.list(at, leaves)
		return
	}
	depth := commonPortBits(leaves[0].vip.Port, leaves[len(leaves)-1].vip.Port)
	for group := range groups(leaves, func(l leaf) int { return int(l.vip.Port>>(12-depth)) & 15 }) {
		if len(group) == 1 {
			t.list(at, group)
			continue
		}
		// Ports are unique here, so two of them differ somewhere: width is at most 12 bits.
		width := commonPortBits(group[0].vip.Port, group[len(group)-1].vip.Port)
		low := group[0].vip.Port >> (16 - width) << (16 - width)
		high := low | uint16(1<<(16-width)-1)
		name := base + fmt.Sprintf("%04x", low)[:width/4]
		protocol := group[0].vip.Protocol
		t.rule(at, "-p %s -m %s --dport %d:%d -j %s", protocol, protocol, low, high, shorten(name))
		t.byPort(t.add(name), base, group)
	}
}

func (t *tree) list(at int, leaves []leaf) {
	for _, l := range leaves {
		t.chains[at].rules = append(t.chains[at].rules, l.rule)
		t.chains = append(t.chains, l.chains...)
	}
}

// groups yields the runs of neighbours with the same key.
func groups(leaves []leaf, key func(leaf) int) func(yield func([]leaf) bool) {
	return func(yield func([]leaf) bool) {
		for start := 0; start < len(leaves); {
			end := start + 1
			for end < len(leaves) && key(leaves[end]) == key(leaves[start]) {
				end++
			}
			if !yield(leaves[start:end]) {
				return
			}
			start = end
		}
	}
}

// commonBits returns the length of the longest common prefix in whole nibbles.
func commonBits(a, b netip.Addr) int {
	x, y := a.AsSlice(), b.AsSlice()
	for i := range x {
		if x[i] != y[i] {
			return i*8 + bits.LeadingZeros8(x[i]^y[i])&^3
		}
	}
	return len(x) * 8
}

func commonPortBits(a, b uint16) int { return bits.LeadingZeros16(a^b) &^ 3 }

// nibble returns the four bits of a that follow the first depth bits.
func nibble(a netip.Addr, depth int) int {
	b := a.AsSlice()[depth/8]
	if depth%8 == 0 {
		return int(b >> 4)
	}
	return int(b & 15)
}

// nameOf spells an address for a chain name, where a colon would invite mistakes.
func nameOf(a netip.Addr) string { return strings.ReplaceAll(a.String(), ":", "-") }

// shorten hashes a chain name that is too long for the kernel.
func shorten(name string) string {
	if len(name) <= maxChainName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "REDIAL-h" + hex.EncodeToString(sum[:10])
}
