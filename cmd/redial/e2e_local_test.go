package main

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy"
	"redial/proxy/intercept/lab"
)

// withoutIPTables is an instance on a node that has no iptables programs.
func (r *instance) withoutIPTables() *instance {
	r.cmd.Env = append(r.cmd.Env, "PATH=/does/not/exist")
	return r
}

// addressing is everything on the node that steering without netfilter could leave a trace in, less what the kernel does
// for new interfaces by itself.
func addressing(t *testing.T, node *lab.Host) string {
	t.Helper()
	out, err := node.Output("sh", "-ec", "{ ip -o addr; ip -4 route show table all; ip -6 route show table all; ip rule; } | grep -v 'fe80::\\|proto kernel' | sort")
	require.NoError(t, err)
	return out
}

// everything is a Service for TCP and one for UDP, with every kind of address.
func everything() string {
	spec := func(n int, ports string) string {
		return fmt.Sprintf(`
  type: LoadBalancer
  clusterIPs: [198.18.100.%[1]d, "2001:db8:100::%[1]d"]
  externalIPs: [198.18.110.%[1]d, "2001:db8:110::%[1]d"]
  ports: [%[2]s]
status:
  loadBalancer:
    ingress: [{ip: 198.18.120.%[1]d}, {ip: "2001:db8:120::%[1]d"}]`, n, ports)
	}
	const udp = "[{port: 8053, protocol: UDP}]"
	return manifests(
		service("web", spec(1, "{port: 80, nodePort: 30080}")), endpoints("web", "[{port: 8080}]", ip4(1)), endpoints("web", "[{port: 8080}]", ip6(1)),
		service("dns", spec(2, "{port: 53, nodePort: 30053, protocol: UDP}")), endpoints("dns", udp, ip4(1)), endpoints("dns", udp, ip6(1)))
}

func assertEverythingAnswers(t *testing.T, hosts ...*lab.Host) {
	t.Helper()
	at := func(n, port, nodePort int) []string {
		return []string{
			fmt.Sprintf("198.18.100.%d:%d", n, port), fmt.Sprintf("198.18.110.%d:%d", n, port), fmt.Sprintf("198.18.120.%d:%d", n, port),
			fmt.Sprintf("[2001:db8:100::%d]:%d", n, port), fmt.Sprintf("[2001:db8:110::%d]:%d", n, port), fmt.Sprintf("[2001:db8:120::%d]:%d", n, port),
			fmt.Sprintf("198.18.9.1:%d", nodePort), fmt.Sprintf("198.18.1.1:%d", nodePort),
			fmt.Sprintf("[2001:db8:9::1]:%d", nodePort), fmt.Sprintf("[2001:db8:1::1]:%d", nodePort),
		}
	}
	for _, from := range hosts {
		for _, address := range at(1, 80, 30080) {
			assertAnswers(t, from, address, "a")
		}
		for _, address := range at(2, 53, 30053) {
			assertAnswersUDP(t, from, address, "a")
		}
		require.False(t, t.Failed(), "that will do: each failure takes its time")
	}
}

// Where iptables does not work, everything is served without, and a restart and a cleanup find what is ours.
func TestNodeWithoutIPTables(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"single": nil, "service CIDR": {"--service-cidr=198.18.100.0/24,2001:db8:100::/108"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lab.Run(t, func(t *testing.T, node *lab.Host) {
				a := addBackend(t, node, "a", 1)
				answerOn(t, a.host, "a", ":8053")
				client := addHost(t, node, "client", 9)
				before := addressing(t, node)
				dir := t.TempDir()
				writeFile(t, dir+"/all.yaml", everything())
				writeFile(t, dir+"/gone.yaml", web("gone", "198.18.130.9", ip4(1)))
				r := newInstance(t, dir, flags...).withoutIPTables()
				r.start()
				r.awaitServed("web", "dns", "gone")
				assertEverythingAnswers(t, client, a.host, node)
				assertAnswers(t, node, "127.0.0.1:30080", "a")
				assertAnswers(t, node, "[::1]:30080", "a")
				assert.Equal(t, 1, strings.Count(r.log.String(), "iptables does not work here"), "said once")
				out := statusOf(t, r)
				assertLine(t, `.*, interception local`, out)
				assertLine(t, `IPTABLES IS NOT USED: .*executable file not found.*`, out)
				assertLine(t, `default/web +80/TCP +198\.18\.100\.1,.* +- +served .*`, out)
				during := addressing(t, node)
				assert.Contains(t, during, "proto 214")

				// No backend: refused, at once.
				r.write("all.yaml", strings.ReplaceAll(everything(), "endpoints: [{", "endpoints: [{conditions: {ready: false}, "))
				r.await("refusing", func(s *status) bool { return !s.front("web").Serving && !s.front("dns").Serving })
				assertRefused(t, client, clusterIP1+":80")
				assertRefusedUDP(t, client, "198.18.100.2:53")
				r.write("all.yaml", everything())
				r.awaitServed("web", "dns")

				r.kill()
				assertRefused(t, client, clusterIP1+":80")
				assert.Equal(t, during, addressing(t, node), "routes stay when the process dies")
				r.remove("gone.yaml")
				next := newInstance(t, dir, flags...).withoutIPTables()
				next.start()
				next.awaitServed("web", "dns")
				assertEverythingAnswers(t, client, node)
				assert.NotContains(t, addressing(t, node), "198.18.130.9")

				next.kill()
				for range 2 {
					cmd := redialCommand("cleanup")
					cmd.Env = append(cmd.Env, "PATH=/does/not/exist")
					said, err := cmd.CombinedOutput()
					require.NoError(t, err, "%s", said)
					assert.Contains(t, string(said), "no routes of redial are left")
					assert.Equal(t, before, addressing(t, node))
				}
			})
		})
	}
}

// The program that takes over by other means removes what the last one has left.
func TestInterceptionIsChanged(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		a := addBackend(t, node, "a", 1)
		answerOn(t, a.host, "a", ":8053")
		client := addHost(t, node, "client", 9)
		before := addressing(t, node)
		for range 2 {
			r := startRedial(t, everything(), "--interception=local")
			r.awaitServed("web", "dns")
			assertEverythingAnswers(t, client)
			assert.NotContains(t, savedRules(t, node), "REDIAL")
			assert.NotContains(t, r.log.String(), "iptables does not work")
			r.signal(unix.SIGTERM)
			require.NoError(t, r.wait())

			r = startRedial(t, everything()) // auto
			r.awaitServed("web", "dns")
			assertLine(t, `.*, iptables .*\(nft\)`, statusOf(t, r))
			assertEverythingAnswers(t, client)
			assert.Equal(t, before, addressing(t, node))
			assert.Contains(t, r.log.String(), "removed routes of an earlier process")
			r.kill()
		}
	})
}

// Where another process has the port, the Service cannot have it, and says so. The others do not notice.
func TestServicePortTakenByAnotherProcess(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		a := addBackend(t, node, "a", 1)
		client := addHost(t, node, "client", 9)
		ingress := serveOn(t, node, "ingress", "0.0.0.0:80")
		r := startRedial(t, manifests(web("web", clusterIP1, ip4(1)),
			service("other", "{clusterIP: 198.18.100.2, ports: [{port: 81}]}"), endpoints("other", "[{port: 8080}]", ip4(1))), "--interception=local")
		r.awaitServed("other")
		p := r.awaitProblem("web", proxy.ReasonListenFailed)
		assert.Contains(t, p.Message, clusterIP1+":80")
		assert.Contains(t, p.Message, "another process has the port")
		assertAnswers(t, client, "198.18.100.2:81", "a")
		assertAnswers(t, client, "198.18.9.1:80", "ingress")
		assert.NotContains(t, addressing(t, node), clusterIP1, "its clients must not come to the other process")
		ingress.refuse()
		r.awaitNoProblem("web")
		r.awaitServed("web")
		assertAnswers(t, client, clusterIP1+":80", "a")
		assertAnswers(t, a.host, clusterIP1+":80", "a")
	})
}

// The same where the other process is at the Service's very address, for UDP, and within a Service CIDR, which leads clients
// to that process.
func TestServiceAddressTakenByAnotherProcess(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		a := addBackend(t, node, "a", 1)
		answerOn(t, a.host, "a", ":8053")
		client := addHost(t, node, "client", 9)
		_, err := node.Output("ip", "route", "add", "local", "198.18.100.0/24", "dev", "lo") // or nobody could listen there yet
		require.NoError(t, err)
		tcp := serveOn(t, node, "squatter", clusterIP1+":80")
		var udp net.PacketConn
		require.NoError(t, node.Do(func() error {
			udp, err = net.ListenPacket("udp4", "198.18.100.2:53")
			return err
		}))
		_, err = node.Output("ip", "route", "del", "local", "198.18.100.0/24", "dev", "lo")
		require.NoError(t, err)
		r := startRedial(t, everything(), "--interception=local", "--service-cidr=198.18.100.0/24")
		for name, address := range map[string]string{"web": clusterIP1 + ":80", "dns": "198.18.100.2:53"} {
			assert.Contains(t, r.awaitProblem(name, proxy.ReasonListenFailed).Message, address)
		}
		assertAnswers(t, client, "198.18.110.1:80", "a")
		assertAnswersUDP(t, client, "198.18.110.2:53", "a")
		assertAnswers(t, client, clusterIP1+":80", "squatter")
		tcp.refuse()
		require.NoError(t, udp.Close())
		r.awaitNoProblem("web")
		r.awaitNoProblem("dns")
		assertEverythingAnswers(t, client)
	})
}

// When the address leaves that the node's own clients come from, they are cut off, and so may others be. The routes have
// another one without waiting for the next look.
func TestAddressOfTheNodeLeaves(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		a := addBackend(t, node, "a", 1)
		answerOn(t, a.host, "a", ":8053")
		client := addHost(t, node, "client", 9)
		r := startRedial(t, everything(), "--interception=local", "--iptables-sync-period=1h", "--service-cidr=198.18.100.0/24")
		r.awaitServed("web", "dns")
		for _, step := range []struct{ line, source string }{
			{"ip addr add 198.18.254.1/24 dev to-world; ip addr del 198.18.255.1/24 dev to-world", "198.18.254.1"},
			{"ip addr add 198.18.254.2/32 dev lo; ip addr flush dev to-world", "198.18.1.1"},
		} {
			_, err := node.Output("sh", "-ec", step.line)
			require.NoError(t, err)
			require.True(t, eventually(func() bool {
				now := addressing(t, node)
				return strings.Contains(now, "local 198.18.100.0/24 dev lo table local proto 214 scope host src "+step.source) &&
					strings.Count(now, " src "+step.source) == 5
			}), "%s\n%s", step.line, addressing(t, node))
			for _, from := range []*lab.Host{client, node} {
				assertAnswers(t, from, clusterIP1+":80", "a")
				assertAnswers(t, from, "198.18.110.1:80", "a")
			}
		}
	})
}

// A backend that is a VIP, its own Service's or another one's, fails and does not make the proxy call itself.
func TestBackendThatIsLocalVIP(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		client := addHost(t, node, "client", 9)
		loop := func(name, own, other string) string {
			return manifests(service(name, "{clusterIP: "+own+", ports: [{port: 80}]}"), endpoints(name, "[{port: 80}]", own, other))
		}
		r := startRedial(t, manifests(loop("one", "198.18.100.11", "198.18.100.12"), loop("two", "198.18.100.12", "198.18.100.11"),
			web("web", clusterIP1, ip4(1))), "--interception=local", "--dial-timeout=500ms", "--dial-try-timeout=100ms")
		r.awaitServed("one", "two", "web")
		for _, from := range []*lab.Host{client, node} {
			_, err := ask(from, "198.18.100.11:80")
			assert.Error(t, err)
		}
		s := r.status()
		assert.EqualValues(t, 2, s.front("one").Stats.Accepted)
		assert.EqualValues(t, 0, s.front("two").Stats.Accepted)
		assert.Less(t, countFDs(t, r), 60)
		assertAnswers(t, client, clusterIP1+":80", "a")
	})
}

func TestLocalNeedsPrivileges(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, _ *lab.Host) {
		for _, interception := range []string{interceptLocal, interceptAuto} {
			r := newInstance(t, t.TempDir(), "--interception="+interception).withoutIPTables()
			r.asNobody()
			require.Error(t, r.cmd.Run())
			assert.Contains(t, r.log.String(), "CAP_NET_ADMIN", interception)
			assert.Contains(t, r.log.String(), "--interception=none", interception)
		}
	})
}

func TestServiceCIDR(t *testing.T) {
	t.Parallel()
	o := defaultOptions()
	o.serviceCIDR = []string{"198.18.100.9/24", " 2001:db8:100::/108"}
	require.NoError(t, o.validate())
	assert.Equal(t, "[198.18.100.0/24 2001:db8:100::/108]", fmt.Sprint(o.serviceRanges))
	for _, bad := range []string{"198.18.100.1", "0.0.0.0/0", "::/0", "127.0.0.0/8", "fe80::/64", "x"} {
		o.serviceCIDR = []string{bad}
		assert.ErrorContains(t, o.validate(), "--service-cidr", bad)
	}
}
