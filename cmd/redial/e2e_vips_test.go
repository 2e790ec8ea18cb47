package main

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
)

// Every kind of virtual address, in both families, from everywhere a client can be.
func TestEveryKindOfAddress(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		a := addBackend(t, node, "a", 1)
		addBackend(t, node, "b", 2)
		client := addHost(t, node, "client", 9)
		r := startRedial(t, manifests(
			service("web", `
  type: LoadBalancer
  clusterIPs: [198.18.100.1, "2001:db8:100::1"]
  externalIPs: [198.18.110.1, "2001:db8:110::1"]
  ports: [{port: 80, nodePort: 30080}]
status:
  loadBalancer:
    ingress:
    - {ip: 198.18.120.1, ipMode: VIP}
    - {ip: "2001:db8:120::1"}
    - {ip: 198.18.121.1, ipMode: Proxy}
    - {hostname: lb.example.com}`),
			endpoints("web", "[{port: 8080}]", ip4(1), ip4(2)),
			endpoints("web", "[{port: 8080}]", ip6(1), ip6(2))))
		s := r.awaitServed("web")
		assert.Empty(t, s.service("web").Problems)

		everywhere := []string{
			clusterIP1 + ":80", "[2001:db8:100::1]:80", "198.18.110.1:80", "[2001:db8:110::1]:80",
			"198.18.120.1:80", "[2001:db8:120::1]:80",
			// The node's addresses on the links to the client and to a pod.
			"198.18.9.1:30080", "[2001:db8:9::1]:30080", "198.18.1.1:30080", "[2001:db8:1::1]:30080",
		}
		for _, from := range []*lab.Host{client, a.host, node} {
			for _, address := range everywhere {
				assertAnswers(t, from, address, "a", "b")
			}
		}
		for _, address := range []string{"127.0.0.1:30080", "127.1.2.3:30080", "[::1]:30080"} {
			assertAnswers(t, node, address, "a", "b")
		}
		routed, err := os.ReadFile("/proc/sys/net/ipv4/conf/all/route_localnet")
		require.NoError(t, err)
		assert.Equal(t, "0\n", string(routed), "127/8 must stay out of reach of others")

		// A load balancer that proxies must see its own traffic: the address is nobody's here, so its packets leave the
		// node, where the network has no place for them.
		_, err = node.Output("ip", "route", "add", "unreachable", "198.18.121.1/32")
		require.NoError(t, err)
		_, err = connect(client, "198.18.121.1:80")
		assert.ErrorIs(t, err, syscall.EHOSTUNREACH)
		// An address is steered for the Service's ports only.
		for _, v := range s.front("web").VIPs {
			assert.NotEqual(t, "198.18.121.1", v.Address)
		}
	})
}

// Two Services and several ports on one number are told apart by address; the two families of one name by family.
func TestPortsAreToldApart(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		pod := addHost(t, node, "pod", 1)
		for _, port := range []string{"8080", "8443", "9090"} {
			serveOn(t, pod, "p"+port, ":"+port)
		}
		serveOn(t, addHost(t, node, "other", 2), "other", ":8080")
		client := addHost(t, node, "client", 9)
		r := startRedial(t, manifests(
			service("multi", `{type: NodePort, clusterIP: 198.18.100.1, ports: [
			  {name: http, port: 80, nodePort: 30080, targetPort: web}, {name: https, port: 443, nodePort: 30443}, {name: metrics, port: 9090}]}`),
			endpoints("multi", "[{name: http, port: 8080}, {name: https, port: 8443}, {name: metrics, port: 9090}]", ip4(1)),
			web("other", "198.18.100.2", ip4(2)),
			service("six", `{clusterIP: "2001:db8:100::6", ports: [{port: 80}]}`),
			endpoints("six", "[{port: 9090}]", ip6(1)),
		))
		r.awaitServed("multi", "other", "six")
		for address, backend := range map[string]string{
			"198.18.100.1:80": "p8080", "198.18.100.1:443": "p8443", "198.18.100.1:9090": "p9090",
			"198.18.9.1:30080": "p8080", "198.18.9.1:30443": "p8443",
			"198.18.100.2:80": "other", "[2001:db8:100::6]:80": "p9090",
		} {
			assertAnswers(t, client, address, backend)
			assertAnswers(t, node, address, backend)
		}
	})
}

func TestServicesThatAreNotForUs(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		r := startRedial(t, manifests(
			service("external", "{type: ExternalName, externalName: example.com, ports: [{port: 80}]}"),
			service("headless", "{clusterIP: None, ports: [{port: 80}]}"),
			endpoints("headless", "[{port: 8080}]", ip4(1)),
			web("web", clusterIP1, ip4(1))))
		s := r.awaitServed("web")
		for _, name := range []string{"external", "headless"} {
			svc := s.service(name)
			require.NotNil(t, svc, name)
			assert.NotEmpty(t, svc.Skipped, name)
			assert.Empty(t, svc.Ports, name)
			assert.Empty(t, svc.Problems, name)
		}
		// A Service that stops being headless is served, and the other way round.
		r.write("all.yaml", manifests(web("headless", "198.18.100.2", ip4(1)),
			service("web", "{clusterIP: None, ports: [{port: 80}]}"), endpoints("web", "[{port: 8080}]", ip4(1))))
		r.awaitServed("headless")
		assertAnswers(t, node, "198.18.100.2:80", "a")
		r.await("web no longer steered", func(s *status) bool { return s.service("web").Skipped != "" && len(s.service("web").Ports) == 0 })
		_, err := node.Output("ip", "route", "add", "unreachable", clusterIP1+"/32")
		require.NoError(t, err)
		_, err = connect(node, clusterIP1+":80")
		assert.Error(t, err)
	})
}

func TestPodCallsItsOwnService(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		a := addBackend(t, node, "a", 1)
		r := startRedial(t, manifests(service("web", `{type: NodePort, clusterIPs: [198.18.100.1, "2001:db8:100::1"], ports: [{port: 80, nodePort: 30080}]}`),
			endpoints("web", "[{port: 8080}]", ip4(1)), endpoints("web", "[{port: 8080}]", ip6(1))))
		r.awaitServed("web")
		for _, address := range []string{"198.18.100.1:80", "[2001:db8:100::1]:80", "198.18.1.1:30080", "[2001:db8:1::1]:30080"} {
			assertAnswers(t, a.host, address, "a")
		}
	})
}

// The proxy's own dial to a backend on the node goes to an address that is steered to the proxy. Without the guard it
// would call itself until it is out of files.
func TestBackendOnTheNodeBehindTheNodesOwnAddress(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		client := addHost(t, node, "client", 9)
		const nodeIP = "198.18.9.1"
		onNode := serveOn(t, node, "on-node", ":8080")
		r := startRedial(t, manifests(
			service("web", fmt.Sprintf("{type: NodePort, clusterIP: %s, externalIPs: [%s], ports: [{port: 8080, nodePort: 30080}]}", clusterIP1, nodeIP)),
			endpoints("web", "[{port: 8080}]", nodeIP)))
		r.awaitServed("web")
		for i, from := range []*lab.Host{client, node} {
			assertAnswers(t, from, nodeIP+":8080", "on-node")
			assert.EqualValues(t, i+1, onNode.accepted.Load(), "one connection arrives for each that a client makes")
			assert.EqualValues(t, i+1, r.status().front("web").Stats.Accepted, "and the proxy sees it once")
		}
		assertAnswers(t, client, "198.18.9.1:30080", "on-node")

		// An endpoint that is another VIP cannot work, since it is not steered for the proxy: it must fail, and not loop.
		_, err := node.Output("ip", "route", "add", "unreachable", "198.18.100.0/24")
		require.NoError(t, err)
		r.write("loop.yaml", manifests(
			service("loop", "{clusterIP: 198.18.102.1, ports: [{port: 80}]}"), endpoints("loop", "[{port: 80}]", "198.18.102.1", clusterIP1)))
		r.awaitServed("loop")
		_, err = node.Output("ip", "route", "add", "unreachable", "198.18.102.1/32")
		require.NoError(t, err)
		_, err = ask(client, "198.18.102.1:80")
		assert.Error(t, err)
		assert.EqualValues(t, 1, r.status().front("loop").Stats.Accepted)
		assert.Less(t, countFDs(t, r), 40)
	})
}

// countFDs returns how many files an instance has open.
func countFDs(t *testing.T, r *instance) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.cmd.Process.Pid))
	require.NoError(t, err)
	return len(entries)
}
