package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

// silence is a packet to each of some VIPs, none of which is to be answered.
type silence struct {
	host *lab.Host
	vips []intercept.VIP
	fds  []int
}

// call sends the packets. Whoever then waits for another VIP to answer the same host knows that an answer to these, which
// would have come the same way, had its time.
func call(t *testing.T, h *lab.Host, vips []intercept.VIP) silence {
	t.Helper()
	s := silence{host: h, vips: vips}
	require.NoError(t, h.Do(func() error {
		for _, v := range vips {
			fd, err := begin(v)
			if err != nil {
				return fmt.Errorf("%s: %w", v, err)
			}
			s.fds = append(s.fds, fd)
			t.Cleanup(func() { unix.Close(fd) })
		}
		return nil
	}))
	return s
}

func begin(v intercept.VIP) (int, error) {
	family, kind := unix.AF_INET, unix.SOCK_STREAM
	var to unix.Sockaddr = &unix.SockaddrInet4{Port: int(v.Port)}
	if v.Addr.Is6() {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Port: int(v.Port), Addr: v.Addr.As16()}
	} else {
		to.(*unix.SockaddrInet4).Addr = v.Addr.As4()
	}
	if v.Protocol == intercept.UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if err = unix.Connect(fd, to); err == nil && v.Protocol == intercept.UDP {
		_, err = unix.Write(fd, []byte("?"))
	}
	if err != nil && err != unix.EINPROGRESS {
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

func (s silence) requireUnbroken(t *testing.T) {
	t.Helper()
	for i, fd := range s.fds {
		if s.vips[i].Protocol == intercept.UDP {
			_, err := unix.Read(fd, make([]byte, 10))
			assert.Equal(t, unix.EAGAIN, err, "%s from %s", s.vips[i], s.host.Name)
			continue
		}
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		require.NoError(t, err)
		assert.EqualValues(t, unix.BPF_TCP_SYN_SENT, info.State, "%s from %s", s.vips[i], s.host.Name)
	}
}

// reached are the VIPs by which h comes to b, whose NodePorts are open at the node's uplink and at loopback.
func reached(h *lab.Host, b intercept.Binding) []intercept.VIP {
	if !b.VIP.NodePort() {
		return []intercept.VIP{b.VIP}
	}
	addrs := []string{nodeIP4, "127.0.0.1"}
	if b.VIP.Addr.Is6() {
		addrs = []string{nodeIP6, "::1"}
	}
	if h.Uplink != "" {
		addrs = addrs[:1]
	}
	var out []intercept.VIP
	for _, a := range addrs {
		out = append(out, vip(a, b.VIP.Port, b.VIP.Protocol))
	}
	return out
}

// served says who is served where by policies(); who is not listed is dropped.
var served = map[string]map[string]uint16{
	"client": {"open": publicPort, "split": publicPort, "ranged": publicPort, "ranged-split": publicPort},
	"pod":    {"open": publicPort, "own": ownPort, "split": ownPort, "ranged-split": ownPort, "ranged-own": ownPort, "node-port-own": ownPort},
	"pod2":   {"open": publicPort, "own": ownPort, "split": ownPort, "node-port-own": ownPort},
	"node":   {"open": publicPort, "own": ownPort, "split": ownPort, "ranged-node": ownPort, "node-port-own": ownPort},
}

func requirePolicies(t *testing.T, hosts ...*lab.Host) {
	t.Helper()
	for _, h := range hosts {
		var quiet []intercept.VIP
		answers := map[intercept.VIP]string{}
		for _, b := range policies().Bindings {
			port := served[h.Name][strings.TrimPrefix(b.Owner, "ns/")]
			for _, v := range reached(h, b) {
				if port == 0 {
					quiet = append(quiet, v)
				} else {
					answers[v] = fmt.Sprintf("%s %d", v.Protocol, port)
				}
			}
		}
		s := call(t, h, quiet)
		for v, want := range answers {
			got, err := ask(h, v)
			assert.NoError(t, err, "%s from %s", v, h.Name)
			assert.Equal(t, want, got, "%s from %s", v, h.Name)
		}
		s.requireUnbroken(t)
	}
}

func TestPolicies(t *testing.T) {
	for _, target := range []Target{TargetRedirect, TargetDNAT} {
		t.Run(string(target), func(t *testing.T) {
			inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
				pod, client := addPodAndClient(t, node)
				pod2, err := node.AddHost("pod2", "198.18.2.2/24", "2001:db8:2::2/64")
				require.NoError(t, err)
				serve(t, publicPort)
				serve(t, ownPort)
				serve(t, discardPort) // were it not dropped, this would answer
				// Of ranged-node, the node has the VIP itself, and sends from it.
				sh(t, node, "ip addr add 203.0.113.9/32 dev lo; ip -6 addr add 2001:db8:e::9/128 dev lo nodad")
				cfg := testConfig(mode)
				cfg.Target = target
				s := newSpy()
				r := startWith(t, cfg, s)
				s.reset()
				require.NoError(t, r.Commit(t.Context(), policies()))
				assert.Equal(t, map[string]int{"iptables-" + string(mode) + "-restore": 1, "ip6tables-" + string(mode) + "-restore": 1}, s.restores)
				requirePolicies(t, client, pod, pod2, node)
				assert.Equal(t, 2*6, r.Stats().IPv4.Dropping)
				assert.Equal(t, 2*6, r.Stats().IPv6.Dropping)
				for _, v := range []intercept.VIP{vip(nodeIP4, discardPort, intercept.TCP), vip(nodeIP6, discardPort, intercept.UDP)} {
					answer, err := ask(client, v)
					require.NoError(t, err)
					assert.Equal(t, v.Protocol.String()+" 9", answer, "a discard server is left alone")
				}
				s.reset()
				require.NoError(t, r.Commit(t.Context(), policies()))
				assert.Empty(t, s.restores, "unchanged")
			})
		})
	}
}

func TestNodePortAddresses(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		pod, client := addPodAndClient(t, node)
		serve(t, 61014)
		r := start(t, testConfig(mode))
		state := intercept.State{}
		for _, p := range []intercept.Protocol{intercept.TCP, intercept.UDP} {
			state.Bindings = append(state.Bindings, bind("*4", 30080, p, 61014, "ns/web"), bind("*6", 30080, p, 61014, "ns/web"))
		}
		expect := func(why string, h *lab.Host, open []string, closed ...string) {
			t.Helper()
			for i, addr := range append(slices.Clip(open), closed...) {
				for _, p := range []intercept.Protocol{intercept.TCP, intercept.UDP} {
					_, err := ask(h, vip(addr, 30080, p))
					if i < len(open) {
						assert.NoError(t, err, "%s: %s from %s", why, addr, h.Name)
					} else {
						assert.ErrorIs(t, err, syscall.ECONNREFUSED, "%s: %s from %s", why, addr, h.Name)
					}
				}
			}
		}
		state.NodePorts = prefixes("198.18.255.0/24", "2001:db8:ff::/64")
		require.NoError(t, r.Commit(t.Context(), state))
		expect("uplink only", client, []string{nodeIP4, nodeIP6}, "198.18.3.1", "2001:db8:3::1", "198.18.1.1")
		expect("uplink only", node, []string{nodeIP4, nodeIP6}, "127.0.0.1", "::1", "198.18.1.1")
		require.NoError(t, node.AddAddress("to-world", "198.18.255.77/24"))
		require.NoError(t, node.AddAddress("to-world", "2001:db8:ff::77/64"))
		require.Eventually(t, func() bool { // an IPv6 address is the node's only once the kernel got round to its route
			return sh(t, node, "ip -6 route show table local 2001:db8:ff::77") != ""
		}, patience, time.Millisecond)
		expect("an address that came later", client, []string{"198.18.255.77", "2001:db8:ff::77"})
		assert.True(t, verify(t, r))

		state.NodePorts = prefixes("127.0.0.0/8", "2001:db8:1::/64")
		require.NoError(t, r.Commit(t.Context(), state))
		expect("loopback and another", node, []string{"127.0.0.1", "2001:db8:1::1"}, "::1", nodeIP4)
		expect("loopback and another", pod, []string{"2001:db8:1::1"}, nodeIP4, nodeIP6)

		state.NodePorts = prefixes("::/0")
		require.NoError(t, r.Commit(t.Context(), state))
		expect("IPv6 only", node, []string{"::1", nodeIP6}, "127.0.0.1", nodeIP4)

		state.NodePorts, state.NoLocalhostNodePorts = nil, true
		require.NoError(t, r.Commit(t.Context(), state))
		expect("not localhost", node, []string{nodeIP4, nodeIP6}, "127.0.0.1", "::1")
		state.NodePorts = append(prefixes("0.0.0.0/0", "::/0"), state.NodePorts...)
		require.NoError(t, r.Commit(t.Context(), state))
		expect("localhost among the prefixes", node, []string{nodeIP4, nodeIP6}, "127.0.0.1", "::1")
		state.NodePorts = prefixes("127.0.0.1/32", "::1/128")
		require.NoError(t, r.Commit(t.Context(), state))
		expect("nothing left", node, nil, nodeIP4, nodeIP6, "127.0.0.1", "::1")
	})
}

// Whether the node may come to its own VIP depends on its addresses, so that a new one calls for a Commit.
func TestSourceRangesThatHoldTheNode(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		serve(t, publicPort)
		sh(t, node, "ip addr add 203.0.113.9/32 dev lo")
		ranged, open := bind("203.0.113.9", 80, intercept.TCP, publicPort, "ns/ranged"), bind("203.0.113.1", 80, intercept.TCP, publicPort, "ns/open")
		ranged.Sources = prefixes("198.18.77.0/24")
		state := intercept.State{Bindings: []intercept.Binding{ranged, open}}
		r := start(t, testConfig(ModeNFT))
		require.NoError(t, r.Commit(t.Context(), state))
		s := call(t, node, []intercept.VIP{ranged.VIP})
		_, err := ask(node, open.VIP)
		require.NoError(t, err)
		s.requireUnbroken(t)
		require.NoError(t, node.AddAddress("to-world", "198.18.78.1/24"))
		assert.True(t, verify(t, r), "an address elsewhere")

		require.NoError(t, node.AddAddress("to-world", "198.18.77.1/24"))
		assert.False(t, verify(t, r), "an address in the range")
		require.NoError(t, r.Commit(t.Context(), state))
		assert.True(t, verify(t, r))
		_, err = ask(node, ranged.VIP)
		require.NoError(t, err)

		ranged.Sources[0] = netip.MustParsePrefix("198.18.1.0/24")
		require.NoError(t, r.Commit(t.Context(), state))
		assert.Contains(t, dump(t, ModeNFT, false, "nat"), "-s 198.18.1.0/24", "the caller may write to what it gave")
	})
}

// Tables change one after the other. At no time may a packet find the way to the discard port open.
func TestDropsAreNeverRefusals(t *testing.T) {
	inModes(t, func(t *testing.T, _ *lab.Host, mode Mode) {
		s := newSpy()
		r := startWith(t, testConfig(mode), s)
		var input string
		s.refuse = func(text string) string { input = text; return "" }
		on := bind("203.0.113.1", 80, intercept.TCP, publicPort, "ns/web")
		off := on
		off.Listen = netip.AddrPort{}
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{on}}))
		for _, c := range []struct {
			b             intercept.Binding
			first, second string
		}{{off, "*filter\n", "*nat\n"}, {on, "*nat\n", "*filter\n"}} {
			s.reset()
			require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{c.b}}))
			assert.Len(t, s.restores, 1)
			require.Contains(t, input, c.second)
			assert.True(t, strings.HasPrefix(input, c.first), input)
			assert.True(t, verify(t, r))
		}
	})
}
