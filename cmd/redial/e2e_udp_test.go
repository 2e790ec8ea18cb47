package main

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/config"
	"redial/proxy/intercept/lab"
)

// A client takes an answer from the address it asked, and from no other: not from the one that the kernel would choose by
// route, which is what an interface with two addresses and clients on the node itself show.
func TestRepliesComeFromTheAddressAsked(t *testing.T) {
	t.Parallel()
	for _, target := range []string{"redirect", "dnat"} {
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			lab.Run(t, func(t *testing.T, node *lab.Host) {
				a := addUDPBackend(t, node, "a", 1)
				client := addHost(t, node, "client", 9)
				require.NoError(t, node.AddAddress(client.Uplink, "198.18.9.77/24"))
				require.NoError(t, node.AddAddress(client.Uplink, "2001:db8:9::77/64"))
				const ports = "[{port: 8053, protocol: UDP}]"
				r := startRedial(t, manifests(
					service("dns", `
  type: LoadBalancer
  clusterIPs: [198.18.100.1, "2001:db8:100::1"]
  externalIPs: [198.18.110.1, "2001:db8:110::1"]
  ports: [{port: 53, nodePort: 30053, protocol: UDP}]
status:
  loadBalancer:
    ingress: [{ip: 198.18.120.1}, {ip: "2001:db8:120::1"}]`),
					endpoints("dns", ports, ip4(1)), endpoints("dns", ports, ip6(1))), "--iptables-target="+target)
				r.awaitServed("dns")
				everywhere := []string{
					"198.18.100.1:53", "198.18.110.1:53", "198.18.120.1:53", "198.18.9.1:30053", "198.18.9.77:30053", "198.18.1.1:30053",
					"[2001:db8:100::1]:53", "[2001:db8:110::1]:53", "[2001:db8:120::1]:53",
					"[2001:db8:9::1]:30053", "[2001:db8:9::77]:30053", "[2001:db8:1::1]:30053",
				}
				// The pod that is the backend as well reaches itself.
				for _, from := range []*lab.Host{client, a.host, node} {
					for _, address := range everywhere {
						assertAnswersUDP(t, from, address, "a")
					}
					require.False(t, t.Failed(), "that will do: each failure takes its time")
				}
				for _, address := range []string{"127.0.0.1:30053", "127.1.2.3:30053", "[::1]:30053"} {
					assertAnswersUDP(t, node, address, "a")
				}
			})
		})
	}
}

func TestDatagramsOfEverySize(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		// Without a name, so that the answer to the largest datagram is not larger still.
		serveUDPOn(t, addHost(t, node, "a", 1), "a", ":8053", whole)
		client := addHost(t, node, "client", 9)
		r := startRedial(t, manifests(
			service("dns", `{clusterIPs: [198.18.100.1, "2001:db8:100::1"], ports: [{port: 53, protocol: UDP}]}`),
			endpoints("dns", "[{port: 8053, protocol: UDP}]", ip4(1)), endpoints("dns", "[{port: 8053, protocol: UDP}]", ip6(1))))
		r.awaitServed("dns")
		sizes := []int{0, 1, 1472, 4097, 65507}
		for _, from := range []*lab.Host{client, node} {
			for _, address := range []string{"198.18.100.1:53", "[2001:db8:100::1]:53"} {
				f := mustOpenFlow(t, from, address)
				for _, size := range sizes {
					assertEcho(t, f, size)
				}
			}
		}
		for _, front := range r.status().port("dns", config.UDP).Fronts {
			assert.EqualValues(t, 2*len(sizes), front.Stats.DatagramsIn, front.Family)
			assert.EqualValues(t, 2*len(sizes), front.Stats.DatagramsOut, front.Family)
		}
	})
}

// The two protocols share a number, as DNS has it, and nothing else.
func TestUDPAndTCPOnOneNumber(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		tcp := addBackend(t, node, "a", 1)
		answerOn(t, tcp.host, "a", ":8080")
		client := addHost(t, node, "client", 9)
		const (
			vip, nodePort = "198.18.100.1:53", "198.18.9.1:30053"
			tcpPort       = "{name: tcp, port: 53, nodePort: 30053, protocol: TCP}"
			udpPort       = "{name: udp, port: 53, nodePort: 30053, protocol: UDP}"
		)
		with := func(ports ...string) string {
			return manifests(service("dns", "{type: NodePort, clusterIP: 198.18.100.1, ports: ["+strings.Join(ports, ", ")+"]}"),
				endpoints("dns", "[{name: tcp, port: 8080, protocol: TCP}, {name: udp, port: 8080, protocol: UDP}]", ip4(1)))
		}
		r := startRedial(t, with(tcpPort, udpPort))
		r.awaitServed("dns")
		live, flows := mustDial(t, client, vip), []*flow{mustOpenFlow(t, client, vip), mustOpenFlow(t, client, nodePort)}
		awaitBackend(t, "a", flows...)

		// UDP goes, and TCP does not notice.
		syncs := r.status().Sync.Syncs
		r.write("all.yaml", with(tcpPort))
		r.await("UDP gone", func(s *status) bool { return len(s.service("dns").Ports) == 1 && s.Sync.Syncs > syncs })
		awaitRefused(t, flows[1])
		assert.NoError(t, live.echo("still there"))
		assertAnswers(t, client, vip, "a")
		assertAnswers(t, client, nodePort, "a")

		// UDP comes back to clients that have not stopped, TCP goes.
		r.write("all.yaml", with(udpPort))
		r.await("TCP gone", func(s *status) bool {
			return len(s.service("dns").Ports) == 1 && s.port("dns", config.UDP).Port != 0 && len(s.front("dns").VIPs) == 2
		})
		awaitBackend(t, "a", flows...)
		assertRefused(t, client, nodePort)
		sessions := r.status().front("dns").Stats.Accepted
		r.write("all.yaml", with(tcpPort, udpPort))
		r.await("both", func(s *status) bool { return len(s.service("dns").Ports) == 2 })
		r.awaitServed("dns")
		assertAnswers(t, client, vip, "a")
		awaitBackend(t, "a", flows...)
		assert.Equal(t, sessions, r.status().port("dns", config.UDP).Fronts[0].Stats.Accepted, "the flows' own sessions go on")
	})
}

// The proxy's own datagram to a backend on the node goes to an address that is steered to the proxy. Without the guard it
// would send it to itself for ever.
func TestDatagramToABackendBehindTheNodesOwnAddress(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		client := addHost(t, node, "client", 9)
		const nodeIP = "198.18.9.1"
		onNode := answerOn(t, node, "on-node", nodeIP+":53")
		r := startRedial(t, manifests(
			service("dns", fmt.Sprintf("{clusterIP: %s, externalIPs: [%s], ports: [{port: 53, protocol: UDP}]}", clusterIP1, nodeIP)),
			endpoints("dns", "[{port: 53, protocol: UDP}]", nodeIP)))
		r.awaitServed("dns")
		for i, from := range []*lab.Host{client, node} {
			assertAnswersUDP(t, from, nodeIP+":53", "on-node")
			assert.EqualValues(t, i+1, onNode.received.Load(), "one datagram arrives for each that a client sends")
			assert.EqualValues(t, i+1, r.status().front("dns").Stats.DatagramsIn, "and the proxy sees it once")
		}
		assertAnswersUDP(t, client, clusterIP1+":53", "on-node")
	})
}

func TestProxyPortRefusesDatagramsDirectly(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addUDPBackend(t, node, "a", 1)
		client := addHost(t, node, "client", 9)
		r := startRedial(t, manifests(
			service("dns", `{clusterIPs: [198.18.100.1, "2001:db8:100::1"], ports: [{port: 53, protocol: UDP}]}`),
			endpoints("dns", "[{port: 8053, protocol: UDP}]", ip4(1)), endpoints("dns", "[{port: 8053, protocol: UDP}]", ip6(1))))
		fronts := r.awaitServed("dns").port("dns", config.UDP).Fronts
		require.Len(t, fronts, 2)
		assertAnswersUDP(t, client, "198.18.100.1:53", "a")
		for _, f := range fronts {
			direct, local := "198.18.9.1", "127.0.0.1"
			if f.Family == config.IPv6 {
				direct, local = "2001:db8:9::1", "::1"
			}
			port := fmt.Sprint(f.ProxyPort)
			assertRefusedUDP(t, client, net.JoinHostPort(direct, port))
			assertRefusedUDP(t, node, net.JoinHostPort(direct, port))
			assertRefusedUDP(t, node, net.JoinHostPort(local, port))
		}
		assert.EqualValues(t, 1, r.status().front("dns").Stats.DatagramsIn)
	})
}

func TestStatusOfUDP(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addUDPBackend(t, node, "a", 1)
		addUDPBackend(t, node, "b", 2).refuse()
		client := addHost(t, node, "client", 9)
		r := startRedial(t, resolver("dns", clusterIP1, ip4(1), ip4(2)))
		r.awaitServed("dns")
		for range 3 {
			f := mustOpenFlow(t, client, clusterIP1+":53")
			for range 2 {
				name, err := f.exchange(udpPatience)
				require.NoError(t, err)
				require.Equal(t, "a", name)
			}
		}
		front := r.status().front("dns")
		assert.EqualValues(t, 6, front.Stats.DatagramsIn)
		assert.EqualValues(t, 6, front.Stats.DatagramsOut)
		assert.Positive(t, front.Stats.Retried, "one refusal sends the others elsewhere, for a while")
		assertLine(t, fmt.Sprintf(`default/dns +53/UDP +198\.18\.100\.1 +%d +served +2/2 +3 +3 +%d +0`, front.ProxyPort, front.Stats.Retried), statusOf(t, r))
		wide := statusOf(t, r, "-o", "wide")
		assertLine(t, `default/dns +53/UDP +198\.18\.1\.2:8053 +ready +1 +3 +\d+ +0 +- +-`, wide)
		assertLine(t, `default/dns +53/UDP +198\.18\.2\.2:8053 +ready +1 +0 +\d+ +[1-9] +- +\d+s ago: .*connection refused`, wide)
		r.write("all.yaml", resolver("dns", clusterIP1))
		r.await("no session left", func(s *status) bool { return s.front("dns").Stats.Active == 0 })
		assertLine(t, `default/dns +53/UDP +198\.18\.100\.1 +\d+ +refused +0/0 +0 +3 +[1-9] +0`, statusOf(t, r))
	})
}

func TestUnprivilegedUDP(t *testing.T) {
	t.Parallel()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	require.NoError(t, err)
	b := &udpBackend{t: t, name: "a", answer: named, conn: conn}
	go b.answerLoop(conn)
	t.Cleanup(b.refuse)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "dns.yaml"), manifests(service("dns", "{clusterIP: 198.18.100.1, ports: [{port: 53, protocol: UDP}]}"),
		endpoints("dns", fmt.Sprintf("[{port: %d, protocol: UDP}]", conn.LocalAddr().(*net.UDPAddr).Port), "127.0.0.1")))
	r := newInstance(t, dir, "--interception=none")
	r.asNobody()
	r.start()
	front := r.awaitServed("dns").front("dns")
	require.Equal(t, []string{fmt.Sprintf("127.0.0.1:%d", front.ProxyPort)}, front.Listen)
	c, err := net.Dial("udp4", front.Listen[0])
	require.NoError(t, err)
	defer c.Close()
	f := &flow{Conn: c}
	for range 3 {
		name, err := f.exchange(udpPatience)
		require.NoError(t, err)
		assert.Equal(t, "a", name)
	}
	assert.EqualValues(t, 1, r.status().front("dns").Stats.Accepted)
}
