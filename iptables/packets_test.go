package iptables

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

// The node's addresses on its uplink, which lab chooses.
const (
	nodeIP4 = "198.18.255.1"
	nodeIP6 = "2001:db8:ff::1"
)

// everyKind has one VIP of each kind, per protocol and family, and the listener's port is the last number.
func everyKind() []intercept.Binding {
	var bindings []intercept.Binding
	for _, p := range []intercept.Protocol{intercept.TCP, intercept.UDP} {
		bindings = append(bindings,
			bind("10.96.0.10", 80, p, 61010, "ns/web:cluster-ip"),
			bind("fd00:10:96::10", 80, p, 61010, "ns/web:cluster-ip"),
			bind("203.0.113.5", 80, p, 61011, "ns/web:external-ip"),
			bind("2001:db8:e::5", 80, p, 61011, "ns/web:external-ip"),
			bind("203.0.113.6", 80, p, 61012, "ns/web:load-balancer"),
			bind("2001:db8:e::6", 80, p, 61012, "ns/web:load-balancer"),
			bind(nodeIP4, 8080, p, 61013, "ns/web:external-ip-of-node"),
			bind(nodeIP6, 8080, p, 61013, "ns/web:external-ip-of-node"),
			bind("*4", 30080, p, 61014, "ns/web:node-port"),
			bind("*6", 30080, p, 61014, "ns/web:node-port"))
	}
	return bindings
}

// requireServed sends to every kind of VIP from each host.
func requireServed(t *testing.T, hosts ...*lab.Host) {
	t.Helper()
	for _, h := range hosts {
		for _, b := range everyKind() {
			addrs := []string{b.VIP.Addr.String()}
			if b.VIP.NodePort() {
				addrs = []string{nodeIP4}
				if b.VIP.Addr.Is6() {
					addrs = []string{nodeIP6}
				}
				if h.Uplink == "" && b.VIP.Addr.Is6() {
					addrs = append(addrs, "::1")
				} else if h.Uplink == "" {
					addrs = append(addrs, "127.0.0.1")
				}
			}
			for _, addr := range addrs {
				v := vip(addr, b.VIP.Port, b.VIP.Protocol)
				answer, err := ask(h, v)
				assert.NoError(t, err, "%s from %s", v, h.Name)
				assert.Equal(t, fmt.Sprintf("%s %d", v.Protocol, b.Listen.Port()), answer, "%s from %s", v, h.Name)
			}
		}
	}
}

func serveEveryKind(t *testing.T) {
	for port := uint16(61010); port <= 61014; port++ {
		serve(t, port)
	}
}

func addPodAndClient(t *testing.T, node *lab.Host) (pod, client *lab.Host) {
	t.Helper()
	pod, err := node.AddHost("pod", "198.18.1.2/24", "2001:db8:1::2/64")
	require.NoError(t, err)
	client, err = node.AddHost("client", "198.18.3.2/24", "2001:db8:3::2/64")
	require.NoError(t, err)
	return pod, client
}

func TestEveryKindOfVIPIsServed(t *testing.T) {
	for _, target := range []Target{TargetRedirect, TargetDNAT} {
		t.Run(string(target), func(t *testing.T) {
			inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
				pod, client := addPodAndClient(t, node)
				serveEveryKind(t)
				cfg := testConfig(mode)
				cfg.Target = target
				r := start(t, cfg)
				require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: everyKind()}))
				requireServed(t, pod, client, node)
			})
		})
	}
}

func TestOwnDialsAreLeftAlone(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		serveEveryKind(t)
		r := start(t, testConfig(mode))
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: everyKind()}))
		for _, addr := range []string{nodeIP4, nodeIP6} {
			v := vip(addr, 8080, intercept.TCP)
			answer, err := ask(node, v)
			require.NoError(t, err)
			assert.Equal(t, "tcp 61013", answer)
			_, err = askFor(node, v, patience, testMark)
			assert.ErrorIs(t, err, syscall.ECONNREFUSED, "%s with the mark goes to the address itself, where nobody listens", addr)
			answer, err = askFor(node, v, patience, testMark<<1)
			require.NoError(t, err)
			assert.Equal(t, "tcp 61013", answer, "another mark means nothing")
		}
	})
}

func TestProxyPortsAreRefusedDirectly(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		pod, client := addPodAndClient(t, node)
		serveEveryKind(t)
		direct := []intercept.VIP{}
		for _, p := range []intercept.Protocol{intercept.TCP, intercept.UDP} {
			direct = append(direct, vip(nodeIP4, 61010, p), vip(nodeIP6, 61010, p))
		}
		for _, v := range direct {
			_, err := ask(pod, v)
			require.NoError(t, err, "without rules the port is open")
		}
		r := start(t, testConfig(mode))
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: everyKind()}))
		for _, h := range []*lab.Host{pod, client, node} {
			for _, v := range direct {
				_, err := ask(h, v)
				assert.ErrorIs(t, err, syscall.ECONNREFUSED, "%s from %s", v, h.Name)
			}
		}
		requireServed(t, pod, client, node)

		// A local client whose own port lies in the range gets its answers.
		l, err := net.Listen("tcp4", "198.18.1.1:7777")
		require.NoError(t, err)
		defer l.Close()
		go func() {
			if conn, err := l.Accept(); err == nil {
				conn.Write([]byte("hello"))
				conn.Close()
			}
		}()
		d := net.Dialer{LocalAddr: &net.TCPAddr{Port: 61500}, Timeout: patience}
		conn, err := d.Dial("tcp4", l.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		buf := make([]byte, 10)
		n, err := conn.Read(buf)
		require.NoError(t, err)
		assert.Equal(t, "hello", string(buf[:n]))
	})
}

func TestServedBehindInputPolicyDrop(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		pod, client := addPodAndClient(t, node)
		serveEveryKind(t)
		r := start(t, testConfig(mode))
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: everyKind()}))
		sh(t, node, fmt.Sprintf("iptables-%[1]s -P INPUT DROP; ip6tables-%[1]s -P INPUT DROP; ip6tables-%[1]s -A INPUT -p icmpv6 -j ACCEPT", mode))
		requireServed(t, pod, client)
		_, err := askFor(pod, vip(nodeIP4, 22, intercept.TCP), briefly, 0)
		assert.Error(t, err)
		assert.NotErrorIs(t, err, syscall.ECONNREFUSED, "the policy is in force for everything else")
	})
}

// A load balancer's probes must not depend on what the host lets in, or it would take the node for one without endpoints.
func TestHealthChecksBehindInputPolicyDrop(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		_, client := addPodAndClient(t, node)
		serveEveryKind(t)
		const first, second, inProxyPorts = 31000, 31002, 61500
		for _, port := range []uint16{first, first + 1, second, inProxyPorts} {
			serve(t, port)
		}
		r := start(t, testConfig(mode))
		sh(t, node, fmt.Sprintf("iptables-%[1]s -P INPUT DROP; ip6tables-%[1]s -P INPUT DROP; ip6tables-%[1]s -A INPUT -p icmpv6 -j ACCEPT", mode))
		for _, open := range [][]uint16{{first, second}, {first, second, inProxyPorts}, {second}, nil, {first}} {
			require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: everyKind(), HealthChecks: open}))
			assert.True(t, verify(t, r))
			quiet := []intercept.VIP{ // a port that is none, and health checks are TCP
				vip(nodeIP4, first+1, intercept.TCP), vip(nodeIP6, first+1, intercept.TCP), vip(nodeIP4, second, intercept.UDP),
			}
			if !slices.Contains(open, second) {
				quiet = append(quiet, vip(nodeIP4, second, intercept.TCP)) // closed again
			}
			s := call(t, client, quiet)
			for _, addr := range []string{nodeIP4, nodeIP6} {
				for _, port := range open {
					answer, err := ask(client, vip(addr, port, intercept.TCP))
					require.NoError(t, err, "%s port %d of %v", addr, port, open)
					assert.Equal(t, fmt.Sprintf("tcp %d", port), answer)
				}
			}
			requireServed(t, client)
			s.requireUnbroken(t)
		}
		require.NoError(t, r.Cleanup(t.Context()))
		assert.NotContains(t, dumpAll(t, mode), healthChain)
	})
}

func TestLoopbackStaysOutOfReach(t *testing.T) {
	for _, target := range []Target{TargetRedirect, TargetDNAT} {
		t.Run(string(target), func(t *testing.T) {
			inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
				_, client := addPodAndClient(t, node)
				serveEveryKind(t)
				cfg := testConfig(mode)
				cfg.Target = target
				r := start(t, cfg)
				require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: everyKind()}))
				// A neighbour that sends to 127.0.0.1 through us.
				sh(t, client, "ip route del local 127.0.0.0/8 dev lo table local; ip route del local 127.0.0.1 dev lo table local; "+
					"ip route add 127.0.0.0/8 via 198.18.3.1; echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet")
				_, err := askFor(client, vip("127.0.0.1", 30080, intercept.TCP), briefly, 0)
				assert.Error(t, err)
				assert.Zero(t, conntrackEntries(t, node, "127.0.0.1", 30080), "the packet was let in")
				_, err = ask(node, vip("127.0.0.1", 30080, intercept.TCP))
				assert.NoError(t, err)
				assert.NotZero(t, conntrackEntries(t, node, "127.0.0.1", 30080))
			})
		})
	}
}

func conntrackEntries(t *testing.T, node *lab.Host, addr string, port int) int {
	t.Helper()
	out := sh(t, node, fmt.Sprintf("conntrack -L -p tcp --orig-dst %s --dport %d 2>/dev/null || true", addr, port))
	return strings.Count(out, "\n")
}

// addBareHost attaches a pod as Calico does: no address on the node's end, /32 and /128 routes to the pod.
func addBareHost(t *testing.T, node *lab.Host) *lab.Host {
	t.Helper()
	pod, err := node.AddHost("bare")
	require.NoError(t, err)
	uplink := strings.TrimSpace(sh(t, node, "ip -6 -o addr show dev to-bare scope link | sed 's/.*inet6 \\([^/]*\\).*/\\1/'"))
	require.NotEmpty(t, uplink)
	sh(t, node, "echo 1 > /proc/sys/net/ipv4/conf/to-bare/proxy_arp; ip route add 198.18.9.2 dev to-bare; ip -6 route add 2001:db8:9::2 dev to-bare")
	sh(t, pod, "ip addr add 198.18.9.2/32 dev eth0; ip route add 169.254.1.1 dev eth0; ip route add default via 169.254.1.1; "+
		"ip -6 addr add 2001:db8:9::2/128 dev eth0 nodad; ip -6 route add default via "+uplink+" dev eth0")
	return pod
}

func TestInterfacesWithoutAddress(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		pod, client := addPodAndClient(t, node)
		serveEveryKind(t)
		// A port of a bridge needs no address: packets come in by the bridge.
		sh(t, node, "ip link add br0 type bridge; ip addr add 198.18.7.1/24 dev br0; ip -6 addr add 2001:db8:7::1/64 dev br0 nodad; "+
			"ip link add port0 type veth peer port1; ip link set port0 master br0; ip link set br0 up; ip link set port0 up")
		auto := start(t, testConfig(mode))
		require.NoError(t, auto.Commit(t.Context(), intercept.State{Bindings: everyKind()}))
		assert.Equal(t, "REDIRECT", auto.Stats().IPv4.Target)
		ok, err := auto.Verify(t.Context())
		require.NoError(t, err)
		require.True(t, ok)

		bare := addBareHost(t, node)
		cfg := testConfig(mode)
		cfg.Target = TargetRedirect
		forced := start(t, cfg)
		require.NoError(t, forced.Commit(t.Context(), intercept.State{Bindings: everyKind()}))
		for _, p := range []intercept.Protocol{intercept.TCP, intercept.UDP} {
			_, err := askFor(bare, vip("10.96.0.10", 80, p), briefly, 0)
			var timeout net.Error
			require.ErrorAs(t, err, &timeout, "REDIRECT drops it")
			assert.True(t, timeout.Timeout())
		}

		ok, err = auto.Verify(t.Context())
		require.NoError(t, err)
		assert.False(t, ok, "the new interface calls for DNAT")
		require.NoError(t, auto.Commit(t.Context(), intercept.State{Bindings: everyKind()}))
		assert.Equal(t, "DNAT to "+nodeIP4, auto.Stats().IPv4.Target)
		assert.Equal(t, "DNAT to "+nodeIP6, auto.Stats().IPv6.Target)
		requireServed(t, bare, pod, client, node)
	})
}
