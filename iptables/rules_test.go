package iptables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept"
)

// bind makes a binding; "*4" and "*6" are the addresses of NodePorts.
func bind(addr string, port uint16, protocol intercept.Protocol, listen uint16, owner string) intercept.Binding {
	a := netip.IPv4Unspecified()
	switch addr {
	case "*4":
	case "*6":
		a = netip.IPv6Unspecified()
	default:
		a = netip.MustParseAddr(addr)
	}
	vip := intercept.VIP{Addr: a, Port: port, Protocol: protocol}
	return intercept.Binding{VIP: vip, Listen: wildcard(a.Is6(), listen), Owner: owner}
}

func leavesOf(bindings []intercept.Binding, to netip.Addr) []leaf {
	var leaves []leaf
	for _, b := range bindings {
		leaves = append(leaves, layout{target: to}.leaf(b))
	}
	return leaves
}

// manyServices is n ClusterIPs of one port each, as an API server hands them out from a /16.
func manyServices(n int, v6 bool) []intercept.Binding {
	var bindings []intercept.Binding
	for i := range n {
		addr := fmt.Sprintf("10.96.%d.%d", i>>8, i&255)
		if v6 {
			addr = fmt.Sprintf("fd00:10:96::%x", i+1)
		}
		bindings = append(bindings, bind(addr, 80, intercept.TCP, uint16(20000+i%40000), fmt.Sprintf("ns-%d/service-%d:http", i%100, i)))
	}
	return bindings
}

// randomBindings draws VIPs of one family with much in common, so that every way of splitting is taken.
func randomBindings(r *rand.Rand, n int, v6 bool) []intercept.Binding {
	byVIP := map[intercept.VIP]bool{}
	var bindings []intercept.Binding
	for len(bindings) < n {
		var addr netip.Addr
		host, dense := r.Uint32(), r.IntN(4)
		switch dense {
		case 0:
			host = host & 0x0fff // close together
		case 1:
			host = uint32(r.IntN(3)) // many ports
		}
		if v6 {
			b := netip.MustParseAddr("2001:db8::").As16()
			if dense == 2 {
				b[5], b[7], b[9] = 0x11, 0x22, 0x33 // long to write out
			}
			b[3], b[12], b[13], b[14], b[15] = byte(r.IntN(3)), byte(host>>24), byte(host>>16), byte(host>>8), byte(host)
			addr = netip.AddrFrom16(b)
		} else {
			addr = netip.AddrFrom4([4]byte{byte(1 + host>>24%200), byte(host >> 16), byte(host >> 8), byte(host)})
		}
		if r.IntN(4) == 0 {
			addr = wildcard(v6, 0).Addr()
		}
		if addr.IsMulticast() || addr.IsLoopback() {
			continue
		}
		v := intercept.VIP{Addr: addr, Port: uint16(1 + r.IntN(65535)), Protocol: []intercept.Protocol{intercept.TCP, intercept.UDP}[r.IntN(2)]}
		if byVIP[v] {
			continue
		}
		byVIP[v] = true
		bindings = append(bindings, intercept.Binding{VIP: v, Listen: wildcard(v6, uint16(1+len(bindings))), Owner: "x"})
	}
	return bindings
}

// requireReachable sends a packet to every VIP and asserts where it ends, the size of chains, and how many rules the
// packet met.
func requireReachable(t *testing.T, bindings []intercept.Binding, longest int) {
	t.Helper()
	rules := render(bindings[0].VIP.Addr.Is6(), 0x4000, intercept.PortRange{}, leavesOf(bindings, netip.Addr{}))
	names := map[string]bool{}
	for _, c := range rules.nat.chains {
		require.False(t, names[c.name], "two chains %s", c.name)
		names[c.name] = true
		require.LessOrEqual(t, len(c.name), maxChainName)
		require.True(t, strings.HasPrefix(c.name, prefix))
		require.LessOrEqual(t, len(c.rules), fanout+1, "chain %s", c.name)
	}
	tr := newTracer(rules)
	specific := map[intercept.VIP]bool{}
	for _, b := range bindings {
		specific[b.VIP] = true
	}
	// expect is require.Equal for a hundred thousand times.
	expect := func(p packet, want, why string) verdict {
		got := tr.trace(p)
		if got.target != want {
			require.Equal(t, want, got.target, "%+v: %s", p, why)
		}
		return got
	}
	for _, b := range bindings {
		p := packet{hook: "PREROUTING", to: b.VIP}
		if b.VIP.NodePort() {
			p.to.Addr = netip.MustParseAddr("203.0.113.7")
			if b.VIP.Addr.Is6() {
				p.to.Addr = netip.MustParseAddr("2001:db8:ffff::7")
			}
			expect(p, "", "NodePort on an address that is not the node's")
			p.local = true
		}
		want := fmt.Sprintf("REDIRECT %d", b.Listen.Port())
		if got := expect(p, want, "from outside"); got.rules > longest {
			require.LessOrEqual(t, got.rules, longest, "%s", b.VIP)
		}
		p.hook = "OUTPUT"
		expect(p, want, "from the node")
		p.mark = 0x4000
		expect(p, "", "the proxy's own dial")
		p.mark, p.hook = 0, "PREROUTING"
		if p.to.Port ^= 1; !specific[p.to] && !b.VIP.NodePort() {
			expect(p, "", "the port beside that of a VIP")
		}
	}
}

func TestTreeReachesEveryVIP(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		requireReachable(t, randomBindings(r, 1+r.IntN(800), seed%2 == 1), 10*fanout)
	}
}

func TestTreeIsShallow(t *testing.T) {
	// Four nibbles of address: four chains of at most 16 rules, and the two at the hook.
	requireReachable(t, manyServices(30000, false), 4*fanout+4)
	requireReachable(t, manyServices(5000, true), 4*fanout+4)
	var nodePorts []intercept.Binding
	for port := range uint16(2768) {
		nodePorts = append(nodePorts, bind("*4", 30000+port, intercept.TCP, 1+port, "x"), bind("*4", 30000+port, intercept.UDP, 5000+port, "x"))
	}
	requireReachable(t, nodePorts, 4*fanout+6)
	one := slices.Clone(nodePorts)
	for i := range one {
		one[i].VIP.Addr = netip.MustParseAddr("203.0.113.255")
	}
	requireReachable(t, one, 4*fanout+6)
}

func TestRenderDoesNotDependOnOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	bindings := randomBindings(r, 500, false)
	want := render(false, 1, intercept.PortRange{First: 1, Last: 2}, leavesOf(bindings, netip.Addr{}))
	r.Shuffle(len(bindings), func(i, j int) { bindings[i], bindings[j] = bindings[j], bindings[i] })
	assert.Equal(t, want, render(false, 1, intercept.PortRange{First: 1, Last: 2}, leavesOf(bindings, netip.Addr{})))
}

func TestChangeTouchesOnlyItsPath(t *testing.T) {
	bindings := manyServices(30000, false)
	before := render(false, 0, intercept.PortRange{}, leavesOf(bindings, netip.Addr{}))
	bindings[12345].Listen = netip.AddrPortFrom(bindings[12345].Listen.Addr(), 1)
	after := render(false, 0, intercept.PortRange{}, leavesOf(bindings, netip.Addr{}))
	changed, gone := difference(before, after)
	assert.Equal(t, map[string][]string{"nat": {"REDIAL-10.96.48.48_28"}}, changed)
	assert.Empty(t, gone)

	changed, gone = difference(before, render(false, 0, intercept.PortRange{}, leavesOf(bindings[:29985], netip.Addr{})))
	assert.NotEmpty(t, changed["nat"])
	assert.Equal(t, map[string][]string{"nat": {"REDIAL-10.96.117.32_28"}}, gone)
}

func TestVIPComesBeforeNodePort(t *testing.T) {
	// The node's own address as external IP, on the port that is also a NodePort.
	rules := render(false, 0, intercept.PortRange{}, leavesOf([]intercept.Binding{
		bind("*4", 30080, intercept.TCP, 1, "node port"),
		bind("192.0.2.10", 30080, intercept.TCP, 2, "external IP"),
	}, netip.Addr{}))
	at := func(addr string) packet {
		return packet{hook: "PREROUTING", local: true, to: bind(addr, 30080, intercept.TCP, 1, "").VIP}
	}
	assert.Equal(t, "REDIRECT 2", newTracer(rules).trace(at("192.0.2.10")).target)
	assert.Equal(t, "REDIRECT 1", newTracer(rules).trace(at("192.0.2.11")).target)
	assert.Empty(t, newTracer(rules).trace(at("127.0.0.1")).target, "127/8 from outside is left to the martian check")
}

func TestComment(t *testing.T) {
	for in, want := range map[string]string{
		"":                           "",
		"ns/web:http":                "ns/web:http",
		"a\"b'c\\d\ne\x00f":          "a_b_c_d_e_f",
		"  spaced out ":              "spaced out",
		"ünï":                        "_n_",
		"--comment x -j DROP":        "--comment x -j DROP",
		strings.Repeat("x", 400):     strings.Repeat("x", maxComment),
		strings.Repeat("\n", 100000): strings.Repeat("_", maxComment),
	} {
		assert.Equal(t, want, comment(in), "%.20q", in)
	}
}

// FuzzOwner looks for an owner that makes more of a rule than one line with one comment.
func FuzzOwner(f *testing.F) {
	for _, s := range []string{"ns/web:http", "\"", "\\", "a\nCOMMIT\n*filter", "\r\n-A X", "é", "\xff\xfe", "!", "-", "'", " ", "\t", "\u2028"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, owner string) {
		b := bind("192.0.2.1", 80, intercept.TCP, 8080, owner)
		bare := b
		bare.Owner = ""
		with := render(false, 0, intercept.PortRange{}, leavesOf([]intercept.Binding{b}, netip.Addr{}))
		without := render(false, 0, intercept.PortRange{}, leavesOf([]intercept.Binding{bare}, netip.Addr{}))
		text := restoreInput(with.nat, nil)
		require.Equal(t, strings.Count(restoreInput(without.nat, nil), "\n"), strings.Count(text, "\n"))
		for line := range strings.Lines(text) {
			require.Less(t, len(line), 400)
			require.NotContains(t, line, "\r")
			if !strings.Contains(line, "--dport") {
				continue
			}
			args := words(strings.TrimSuffix(line, "\n"))
			if i := slices.Index(args, "--comment"); i >= 0 {
				require.Equal(t, comment(owner), args[i+1])
				args = slices.Delete(args, i-2, i+2)
			}
			require.Equal(t, strings.Fields("-A REDIAL-SERVICES -d 192.0.2.1/32 -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 8080"), args)
		}
	})
}

func TestSift(t *testing.T) {
	good := bind("192.0.2.1", 80, intercept.TCP, 1, "a")
	twin := good
	rival := bind("192.0.2.1", 80, intercept.TCP, 2, "b")
	six := bind("2001:db8::1", 80, intercept.TCP, 1, "six")
	crossed := bind("192.0.2.2", 80, intercept.TCP, 1, "crossed")
	crossed.Listen = wildcard(true, 1)
	silent := bind("192.0.2.3", 80, intercept.TCP, 0, "no port")
	multicast := bind("224.0.0.1", 80, intercept.TCP, 1, "multicast")
	mapped := bind("::ffff:192.0.2.9", 80, intercept.TCP, 1, "mapped")
	empty := intercept.Binding{Owner: "empty"}
	crossedLocal := bind("192.0.2.5", 80, intercept.TCP, 1, "crossed local")
	crossedLocal.Local = wildcard(true, 1)
	silentLocal := bind("192.0.2.6", 80, intercept.TCP, 1, "no local port")
	silentLocal.Local = wildcard(false, 0)
	dropped := intercept.Binding{VIP: vip("192.0.2.7", 80, intercept.TCP), Owner: "dropped"}
	ranged := bind("192.0.2.8", 80, intercept.TCP, 1, "ranged")
	ranged.Sources = prefixes("198.18.1.0/24", "2001:db8::/32", "198.18.0.9/24")
	again := ranged
	again.Sources = prefixes("198.18.0.0/24", "198.18.1.0/24", "198.18.1.0/24")
	canonical := ranged
	canonical.Sources = prefixes("198.18.0.0/24", "198.18.1.0/24")

	valid, errs := sift([]intercept.Binding{rival, twin, crossed, silent, multicast, mapped, empty, good, six, crossedLocal, silentLocal, dropped, ranged, again})
	assert.Equal(t, map[bool][]intercept.Binding{false: {good, dropped, canonical}, true: {six}}, valid)
	var refused []string
	for _, err := range errs {
		var b *intercept.BindingError
		require.ErrorAs(t, err, &b)
		refused = append(refused, b.Binding.Owner)
	}
	assert.ElementsMatch(t, []string{"b", "crossed", "no port", "multicast", "mapped", "empty", "crossed local", "no local port"}, refused)
}

func TestWords(t *testing.T) {
	for in, want := range map[string][]string{
		``:                                     nil,
		`-j X`:                                 {"-j", "X"},
		`-m comment --comment "a b" -j X`:      {"-m", "comment", "--comment", "a b", "-j", "X"},
		`--comment "say \"-j REDIAL-X\"" -j Y`: {"--comment", `say "-j REDIAL-X"`, "-j", "Y"},
		`--comment "" -j Y`:                    {"--comment", "", "-j", "Y"},
	} {
		assert.Equal(t, want, words(in), in)
	}
}

func TestReadImagesIgnoresOthers(t *testing.T) {
	img := readImages([]byte(`*mangle
:REDIAL-X - [0:0]
*nat
:PREROUTING ACCEPT [1:2]
:REDIAL-PREROUTING - [0:0]
:OTHER - [0:0]
-A PREROUTING -m comment --comment "before REDIAL-PREROUTING" -j OTHER
-A PREROUTING -m comment --comment "say \"-j REDIAL-X\"" -j OTHER
-A PREROUTING -j REDIAL-PREROUTING
-A OTHER -g REDIAL-PREROUTING
-A REDIAL-PREROUTING -j RETURN
COMMIT
*filter
:INPUT ACCEPT [0:0]
COMMIT
`))["nat"]
	assert.Equal(t, 1, img.chains["REDIAL-PREROUTING"].rules)
	assert.Len(t, img.chains, 1)
	assert.Equal(t, []jump{
		{hook{"PREROUTING", "REDIAL-PREROUTING"}, "-j REDIAL-PREROUTING"},
		{hook{"OTHER", "REDIAL-PREROUTING"}, "-g REDIAL-PREROUTING"},
	}, img.jumps)
}

func TestTranslateTo(t *testing.T) {
	a, b, lo := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
	full := network{devices: []device{{2, []netip.Addr{a}}, {3, []netip.Addr{b}}}, uplink: 3}
	bare := network{devices: []device{{1, nil}, {2, []netip.Addr{a}}, {3, []netip.Addr{b}}}, uplink: 3}
	noUplink := network{devices: []device{{1, nil}, {2, []netip.Addr{a}}, {3, []netip.Addr{b}}}}
	onLoopback := network{devices: []device{{1, nil}}, loopback: []netip.Addr{lo}, uplink: 1}
	for name, c := range map[string]struct {
		target Target
		in     network
		want   netip.Addr
	}{
		"all have addresses":       {TargetAuto, full, netip.Addr{}},
		"zero value is auto":       {"", bare, b},
		"one is bare":              {TargetAuto, bare, b},
		"no default route":         {TargetAuto, noUplink, a},
		"address on loopback only": {TargetAuto, onLoopback, lo},
		"no address at all":        {TargetAuto, network{devices: []device{{1, nil}}}, netip.Addr{}},
		"forced, no address":       {TargetDNAT, network{}, netip.Addr{}},
		"forced DNAT":              {TargetDNAT, full, b},
		"forced REDIRECT":          {TargetRedirect, bare, netip.Addr{}},
	} {
		assert.Equal(t, c.want, c.target.translateTo(c.in, netip.Addr{}), name)
	}
	assert.Equal(t, a, TargetAuto.translateTo(bare, a), "the address in use stays")
	assert.Equal(t, a, TargetAuto.translateTo(full, a), "also when no interface needs it any more")
	assert.Equal(t, b, TargetAuto.translateTo(bare, lo), "unless the node lost it")
	assert.Equal(t, netip.Addr{}, TargetAuto.translateTo(full, lo))
	assert.Equal(t, netip.Addr{}, TargetRedirect.translateTo(bare, a))
}

func newRandom() *rand.Rand { return rand.New(rand.NewPCG(3, 4)) }

// render lays out rules with NodePorts open everywhere.
func render(v6 bool, mark uint32, ports intercept.PortRange, leaves []leaf) ruleset {
	return layout{v6: v6, mark: mark, ports: ports, nodePorts: newNodePorts(v6, intercept.State{})}.render(leaves)
}
