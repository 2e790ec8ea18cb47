package iptables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept"
)

func prefixes(texts ...string) []netip.Prefix {
	out := []netip.Prefix{}
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// The ports of listeners for everybody, and for clients on this node.
const (
	publicPort = 61010
	ownPort    = 61020
)

// policies has a binding of each kind of policy, per protocol and family, where it matters. In every /24 and /64 that lab
// makes, .1 is the node and .2 the other host; pods are known by prefix in 198.18.1.0/24, by interface on to-pod2.
func policies() intercept.State {
	s := intercept.State{
		NodePorts: prefixes("198.18.255.0/24", "2001:db8:ff::/64", "127.0.0.0/8", "::1/128"),
		Pods: []intercept.PodSource{
			{Prefix: netip.MustParsePrefix("198.18.1.0/24")}, {Prefix: netip.MustParsePrefix("2001:db8:1::/64")}, {Interface: "to-pod2+"},
		},
	}
	add := func(name, four, six string, port uint16, listen, local uint16, sources []netip.Prefix) {
		for _, p := range []intercept.Protocol{intercept.TCP, intercept.UDP} {
			for _, addr := range []string{four, six} {
				b := bind(addr, port, p, listen, "ns/"+name)
				if listen == 0 {
					b.Listen = netip.AddrPort{}
				}
				if local != 0 {
					b.Local = wildcard(b.VIP.Addr.Is6(), local)
				}
				b.Sources = sources
				s.Bindings = append(s.Bindings, b)
			}
		}
	}
	clients := prefixes("198.18.3.0/24", "2001:db8:3::/64")
	pods := prefixes("198.18.1.2/32", "2001:db8:1::2/128", "198.18.3.0/24", "2001:db8:3::/64")
	add("open", "203.0.113.1", "2001:db8:e::1", 80, publicPort, 0, nil)
	add("dropped", "203.0.113.2", "2001:db8:e::2", 80, 0, 0, nil)
	add("own", "203.0.113.3", "2001:db8:e::3", 80, 0, ownPort, nil)
	add("split", "203.0.113.4", "2001:db8:e::4", 80, publicPort, ownPort, nil)
	add("ranged", "203.0.113.5", "2001:db8:e::5", 80, publicPort, 0, clients)
	add("ranged-split", "203.0.113.6", "2001:db8:e::6", 80, publicPort, ownPort, pods)
	add("ranged-own", "203.0.113.7", "2001:db8:e::7", 80, 0, ownPort, pods)
	add("nobody", "203.0.113.8", "2001:db8:e::8", 80, publicPort, ownPort, prefixes())
	add("ranged-node", "203.0.113.9", "2001:db8:e::9", 80, publicPort, ownPort, prefixes("198.18.255.1/32", "2001:db8:ff::1/128"))
	add("node-port-own", "*4", "*6", 30080, 0, ownPort, nil)
	add("node-port-dropped", "*4", "*6", 30081, 0, 0, nil)
	return s
}

// random draws one of xs.
func random[T any](r *rand.Rand, xs ...T) T { return xs[r.IntN(len(xs))] }

// world is a random node with everything that rules can tell apart.
type world struct {
	intercept.State
	lay     layout
	clients []packet // without hook and destination
}

func newWorld(r *rand.Rand, v6 bool) world {
	n := func(four, six string) netip.Prefix {
		if v6 {
			return netip.MustParsePrefix(six)
		}
		return netip.MustParsePrefix(four)
	}
	node, loopback := n("198.18.255.1/32", "2001:db8:ff::1/128"), n("127.0.0.1/32", "::1/128")
	w := world{lay: layout{v6: v6, mark: testMark, ports: testPorts}}
	w.clients = []packet{
		{from: n("198.18.1.2/32", "2001:db8:1::2/128").Addr(), in: "eth0"},
		{from: n("198.18.2.2/32", "2001:db8:2::2/128").Addr(), in: "veth12"},
		{from: n("198.18.3.2/32", "2001:db8:3::2/128").Addr(), in: "eth0"},
		{from: n("192.0.2.7/32", "2001:db8:4::2/128").Addr(), in: "eth0"},
		{from: node.Addr(), fromLocal: true},
		{from: loopback.Addr(), fromLocal: true},
	}
	if r.IntN(2) == 0 {
		w.lay.target = node.Addr()
	}
	w.lay.outward = random(r, "", "eth0", "veth12")
	ranges := []netip.Prefix{n("198.18.1.0/24", "2001:db8:1::/64"), n("198.18.2.2/32", "2001:db8:2::2/128"), n("198.18.0.0/16", "2001:db8::/46"),
		node, n("0.0.0.0/0", "::/0"), netip.Prefix{}, netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("192.0.2.0/24"),
		netip.MustParsePrefix("::ffff:192.0.2.0/120")}
	some := func(from []netip.Prefix) []netip.Prefix {
		if r.IntN(2) == 0 {
			return nil
		}
		out := []netip.Prefix{}
		for range r.IntN(4) {
			out = append(out, random(r, from...))
		}
		return out
	}
	for _, p := range some(ranges) {
		w.Pods = append(w.Pods, intercept.PodSource{Prefix: p})
	}
	if r.IntN(2) == 0 {
		w.Pods = append(w.Pods, intercept.PodSource{Interface: random(r, "veth+", "veth12", "veth1", "+")})
	}
	w.NodePorts, w.NoLocalhostNodePorts = some(append(ranges, loopback, n("127.0.0.0/8", "::/120"))), r.IntN(2) == 0
	w.lay.node = []netip.Addr{loopback.Addr(), node.Addr()}
	w.lay.pods, w.lay.nodePorts = podsOf(v6, w.Pods), newNodePorts(v6, w.State)
	w.Bindings = randomBindings(r, 1+r.IntN(60), v6)
	for i := range w.Bindings {
		b := &w.Bindings[i]
		b.Listen = wildcard(v6, uint16(20000+i))
		if r.IntN(3) == 0 {
			b.Listen = netip.AddrPort{}
		}
		if r.IntN(3) == 0 {
			b.Local = wildcard(v6, uint16(30000+i))
		}
		b.Sources = some(ranges)
	}
	return w
}

// end says in the contract's words where a packet for b must end.
func (w world) end(b intercept.Binding, p packet) string {
	contains := func(ranges []netip.Prefix, a netip.Addr) bool {
		return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.IsValid() && p.Contains(a) })
	}
	if b.VIP.NodePort() {
		loopback := p.to.Addr.IsLoopback()
		if !p.local || w.NodePorts != nil && !contains(w.NodePorts, p.to.Addr) || loopback && w.NoLocalhostNodePorts {
			return ""
		}
	}
	if b.Sources != nil && !contains(b.Sources, p.from) {
		asItself := p.from == b.VIP.Addr && p.fromLocal
		if !asItself || !slices.ContainsFunc(w.lay.node, func(a netip.Addr) bool { return contains(b.Sources, a) }) {
			return "DROP"
		}
	}
	listener := b.Listen
	if b.Local.IsValid() {
		here := p.fromLocal
		for _, pods := range w.Pods {
			outside := w.lay.outward != "" && p.in == w.lay.outward
			here = here || pods.Prefix.IsValid() && pods.Prefix.Contains(p.from) && !outside ||
				pods.Interface != "" && p.in != "" && matchesInterface(pods.Interface, p.in)
		}
		if here {
			listener = b.Local
		}
	}
	switch {
	case !listener.IsValid():
		return "DROP"
	case w.lay.target.IsValid():
		return fmt.Sprintf("DNAT %s", netip.AddrPortFrom(w.lay.target, listener.Port()))
	}
	return fmt.Sprintf("REDIRECT %d", listener.Port())
}

// FuzzPolicies sends packets of all kinds of clients to bindings of all kinds.
func FuzzPolicies(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(seed, seed%2 == 1)
	}
	f.Fuzz(func(t *testing.T, seed uint64, v6 bool) {
		w := newWorld(rand.New(rand.NewPCG(seed, 5)), v6)
		valid, errs := sift(w.Bindings)
		require.Empty(t, errs)
		require.Len(t, valid[v6], len(w.Bindings))
		var leaves []leaf
		for _, b := range valid[v6] {
			leaves = append(leaves, w.lay.leaf(b))
		}
		rules := w.lay.render(leaves)
		names := map[string]bool{}
		for _, c := range rules.nat.chains {
			require.False(t, names[c.name], "two chains %s", c.name)
			require.LessOrEqual(t, len(c.name), maxChainName)
			names[c.name] = true
		}
		tr := newTracer(rules)
		for _, b := range w.Bindings {
			addrs, clients := []netip.Addr{b.VIP.Addr}, w.clients
			if !b.VIP.NodePort() {
				clients = append(slices.Clip(clients), packet{from: b.VIP.Addr, fromLocal: true}, packet{from: b.VIP.Addr, in: "eth0"})
			} else {
				addrs = append(slices.Clip(w.lay.node), netip.MustParseAddr(map[bool]string{false: "198.18.1.1", true: "2001:db8:1::1"}[v6]))
			}
			for _, p := range clients {
				for _, a := range addrs {
					p.to, p.hook, p.local = b.VIP, "PREROUTING", b.VIP.NodePort()
					if p.in == "" {
						p.hook = "OUTPUT"
					}
					p.to.Addr = a
					if a.IsLoopback() && p.in != "" {
						continue // never served from outside, whatever is asked for
					}
					require.Equal(t, w.end(b, p), tr.trace(p).target, "binding %+v\npacket %+v\nstate %+v", b, p, w.State)
				}
			}
		}
	})
}

func TestSimpleBindingsNeedNoChain(t *testing.T) {
	lay := layout{ports: testPorts}
	simple := bind("192.0.2.1", 80, intercept.TCP, 1, "a")
	for name, change := range map[string]func(*intercept.Binding){
		"one listener":    func(b *intercept.Binding) { b.Local = b.Listen },
		"all sources":     func(b *intercept.Binding) { b.Sources = prefixes("192.0.2.0/24", "0.0.0.0/0") },
		"both":            func(b *intercept.Binding) { b.Local, b.Sources = b.Listen, prefixes("0.0.0.0/0", "::/0") },
		"nothing changed": func(*intercept.Binding) {},
	} {
		b := simple
		change(&b)
		assert.Equal(t, lay.leaf(simple), lay.leaf(plain(b)), name)
	}
	dropped := simple
	dropped.Listen = netip.AddrPort{}
	want := leaf{vip: simple.VIP, rule: `-d 192.0.2.1/32 -p tcp -m tcp --dport 80 -m comment --comment "a" -j REDIRECT --to-ports 9`, closed: true}
	for name, change := range map[string]func(*intercept.Binding){
		"no listener":         func(*intercept.Binding) {},
		"no listener, ranges": func(b *intercept.Binding) { b.Sources = prefixes("192.0.2.0/24") },
		"nobody": func(b *intercept.Binding) {
			b.Sources, b.Listen, b.Local = prefixes(), simple.Listen, wildcard(false, 2)
		},
		"nobody of the family":     func(b *intercept.Binding) { b.Sources, b.Listen = prefixes("2001:db8::/32"), simple.Listen },
		"nothing that is a prefix": func(b *intercept.Binding) { b.Sources, b.Listen = []netip.Prefix{{}}, simple.Listen },
	} {
		b := dropped
		change(&b)
		assert.Equal(t, want, lay.leaf(plain(b)), name)
	}
}

func TestPodSourcesThatNoRuleCanSay(t *testing.T) {
	good := []intercept.PodSource{{Prefix: netip.MustParsePrefix("198.18.1.0/24")}, {Interface: "cali+"}, {Interface: "br-0.5@x_y"}}
	bad := []intercept.PodSource{{}, {Prefix: good[0].Prefix, Interface: "cni0"}, {Prefix: netip.MustParsePrefix("::ffff:192.0.2.0/120")},
		{Interface: "-j"}, {Interface: "!cni0"}, {Interface: "a b"}, {Interface: "a\nCOMMIT"}, {Interface: `a"`}, {Interface: "a/b"}, {Interface: "sixteen-letters!"}}
	assert.Equal(t, good, podsOf(false, append(slices.Clone(bad), good...)))
	assert.Equal(t, good[1:], podsOf(true, append(slices.Clone(bad), good...)))
}

// A binding's chains may be in use while its rules are tried in the scratch chain.
func TestTrialTouchesNoChain(t *testing.T) {
	b := bind("192.0.2.1", 80, intercept.TCP, 1, `ns/a -j REDIAL-B`)
	b.Local, b.Sources = wildcard(false, 2), prefixes("192.0.2.0/24")
	lay := layout{pods: []intercept.PodSource{{Interface: "cali+"}}}
	assert.Equal(t, []string{
		`-d 192.0.2.1/32 -p tcp -m tcp --dport 80 -m comment --comment "ns/a -j REDIAL-B"`,
		"-s 192.0.2.0/24",
		"-p tcp -j REDIRECT --to-ports 9",
		"-p tcp -m addrtype --src-type LOCAL -j REDIRECT --to-ports 2",
		"-i cali+ -p tcp -j REDIRECT --to-ports 2",
		"-p tcp -j REDIRECT --to-ports 1",
	}, lay.leaf(b).trial())
	b.Local, b.Sources = netip.AddrPort{}, nil
	assert.Equal(t, []string{lay.leaf(b).rule}, lay.leaf(b).trial())
}
