package main

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/config"
	"redial/proxy/intercept/lab"
)

// The clients of these tests keep their port and do not stop sending, so that neither a session nor an entry of
// connection tracking ends by itself.

// unready makes all endpoints of a slice unready.
func unready(slice string) string {
	return strings.ReplaceAll(slice, "{addresses:", "{conditions: {ready: false}, addresses:")
}

// endpoints6 is an IPv6 slice, also when it is empty.
func endpoints6(service, ports string, addresses ...string) string {
	if len(addresses) > 0 {
		return endpoints(service, ports, addresses...)
	}
	return strings.NewReplacer("-ipv4", "-ipv6", "IPv4", "IPv6").Replace(endpoints(service, ports))
}

func TestFlowsFollowTheirPods(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		backends := map[string]*udpBackend{}
		for i, name := range []string{"a", "b", "c"} {
			backends[name] = addUDPBackend(t, node, name, i+1)
			backends["stats on "+name] = serveUDPOn(t, backends[name].host, "stats on "+name, ":8125", mute)
		}
		client := addHost(t, node, "client", 9)
		spec := func(change func(string) string, pods ...int) string {
			var v4, v6 []string
			for _, n := range pods {
				v4, v6 = append(v4, ip4(n)), append(v6, ip6(n))
			}
			const ports = "[{name: dns, port: 8053, protocol: UDP}, {name: stats, port: 8125, protocol: UDP}]"
			return manifests(service("dns", `{type: NodePort, clusterIPs: [198.18.100.1, "2001:db8:100::1"], ports: [
			  {name: dns, port: 53, nodePort: 30053, protocol: UDP}, {name: stats, port: 8125, nodePort: 30125, protocol: UDP}]}`),
				change(endpoints("dns", ports, v4...)), change(endpoints6("dns", ports, v6...)))
		}
		ready := func(slice string) string { return slice }
		r := startRedial(t, spec(ready, 1))
		r.awaitServed("dns")
		flows := []*flow{
			mustOpenFlow(t, client, "198.18.100.1:53"), mustOpenFlow(t, client, "198.18.9.1:30053"), mustOpenFlow(t, client, "[2001:db8:100::1]:53"),
			mustOpenFlow(t, node, "198.18.100.1:53"), mustOpenFlow(t, node, "127.0.0.1:30053"), mustOpenFlow(t, node, "[2001:db8:100::1]:53"),
		}
		sender := mustOpenFlow(t, client, "198.18.100.1:8125")
		follow := func(name string) {
			t.Helper()
			awaitBackend(t, name, flows...)
			awaitArrival(t, backends["stats on "+name], sender)
		}
		follow("a")
		// Replaced: the one that has left could still answer.
		r.write("all.yaml", spec(ready, 2))
		follow("b")
		// It answers still when it is not ready any more, and must not be asked.
		r.write("all.yaml", spec(unready, 2))
		for _, f := range flows {
			awaitRefused(t, f)
		}
		r.write("all.yaml", spec(ready, 2))
		follow("b")
		// Ready are two: those who have one keep it. Then it goes, with its pod.
		r.write("all.yaml", spec(ready, 1, 2))
		r.await("two backends", func(s *status) bool { return len(s.front("dns").Backends) == 2 })
		for _, f := range flows {
			name, err := f.exchange(udpPatience)
			require.NoError(t, err, "%s", f)
			assert.Equal(t, "b", name, "%s", f)
		}
		backends["b"].refuse()
		r.write("all.yaml", spec(ready, 1))
		follow("a")
		// Down to none, and up with another one.
		r.write("all.yaml", spec(ready))
		for _, f := range flows {
			awaitRefused(t, f)
		}
		r.await("no session left", func(s *status) bool {
			n := int64(0)
			for _, p := range s.service("dns").Ports {
				for _, f := range p.Fronts {
					n += f.Stats.Active
				}
			}
			return n == 0
		})
		r.write("all.yaml", spec(ready, 3))
		follow("c")
	})
}

// everyKind are the addresses of a Service of every kind, and of the node.
func everyKind(clusterIP string) []string {
	return []string{clusterIP + ":53", "198.18.110.1:53", "198.18.120.1:53", "198.18.9.1:30053"}
}

// everyKindOfResolver has the addresses of everyKind.
func everyKindOfResolver() string {
	return manifests(service("dns", `
  type: LoadBalancer
  clusterIPs: [198.18.100.1, "2001:db8:100::1"]
  externalIPs: [198.18.110.1]
  ports: [{port: 53, nodePort: 30053, protocol: UDP}]
status:
  loadBalancer: {ingress: [{ip: 198.18.120.1}]}`),
		endpoints("dns", "[{port: 8053, protocol: UDP}]", ip4(1)), endpoints("dns", "[{port: 8053, protocol: UDP}]", ip6(1)))
}

// A flow that began before there was a rule for it is in connection tracking as untranslated, and its own datagrams keep
// it there. The flows of another Service, on the same port, are right and stay as they are.
func TestFlowsBegunBeforeTheService(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addUDPBackend(t, node, "a", 1)
		addUDPBackend(t, node, "other", 2)
		client := addHost(t, node, "client", 9)
		r := startRedial(t, resolver("other", "198.18.100.2", ip4(2)))
		r.awaitServed("other")
		trackForLong(t, node)
		other := []*flow{mustOpenFlow(t, client, "198.18.100.2:53"), mustOpenFlow(t, node, "198.18.100.2:53")}
		awaitBackend(t, "other", other...)
		before := []tracked{trackedFlow(t, node, other[0]), trackedFlow(t, node, other[1])}
		require.NotContains(t, before, tracked{})

		var flows []*flow
		for _, from := range []*lab.Host{client, node} {
			for _, address := range append(everyKind("198.18.100.1"), "[2001:db8:100::1]:53") {
				flows = append(flows, mustOpenFlow(t, from, address))
			}
		}
		untranslated := func() {
			for _, f := range flows {
				require.True(t, eventually(func() bool {
					f.Write([]byte("anybody there?"))
					entry := trackedFlow(t, node, f)
					return entry.id != "" && entry.replyPort == fmt.Sprint(f.RemoteAddr().(*net.UDPAddr).Port)
				}), "%s is not tracked as untranslated", f)
			}
		}
		untranslated()
		r.write("dns.yaml", everyKindOfResolver())
		awaitBackend(t, "a", flows...)

		// Deleted and made again.
		r.remove("dns.yaml")
		r.await("Service gone", func(s *status) bool { return s.service("dns") == nil })
		untranslated()
		r.write("dns.yaml", everyKindOfResolver())
		awaitBackend(t, "a", flows...)

		for i, f := range other {
			assert.Equal(t, before[i], trackedFlow(t, node, f), "%s was right", f)
		}
		awaitBackend(t, "other", other...)
		assert.EqualValues(t, 2, r.status().front("other").Stats.Accepted, "its sessions go on")
	})
}

// After a crash the proxy takes its ports up again, and flows need no help. One whose port was lost to somebody else
// meanwhile goes on at another port, though connection tracking knows the old one only.
func TestFlowsSurviveARestart(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addUDPBackend(t, node, "a", 1)
		addUDPBackend(t, node, "other", 2)
		client := addHost(t, node, "client", 9)
		r := startRedial(t, manifests(everyKindOfResolver(), resolver("other", "198.18.100.2", ip4(2))))
		r.awaitServed("dns", "other")
		trackForLong(t, node)
		var flows []*flow
		for _, from := range []*lab.Host{client, node} {
			for _, address := range everyKind("198.18.100.1") {
				flows = append(flows, mustOpenFlow(t, from, address))
			}
		}
		other := mustOpenFlow(t, client, "198.18.100.2:53")
		awaitBackend(t, "a", flows...)
		awaitBackend(t, "other", other)
		all := append([]*flow{other}, flows...)
		var before []tracked
		for _, f := range all {
			before = append(before, trackedFlow(t, node, f))
		}
		require.NotContains(t, before, tracked{})

		r.kill()
		for _, f := range all {
			awaitRefused(t, f)
		}
		r = r.restart()
		awaitBackend(t, "a", flows...)
		awaitBackend(t, "other", other)
		for i, f := range all {
			assert.Equal(t, before[i], trackedFlow(t, node, f), "%s was right", f)
		}

		port := r.status().port("dns", config.UDP).Fronts[0].ProxyPort
		r.kill()
		thief, err := net.ListenPacket("udp4", fmt.Sprintf(":%d", port))
		require.NoError(t, err)
		defer thief.Close()
		r = r.restart()
		awaitBackend(t, "a", flows...)
		awaitBackend(t, "other", other)
		assert.NotEqual(t, port, r.status().port("dns", config.UDP).Fronts[0].ProxyPort)
		assert.Equal(t, before[0], trackedFlow(t, node, other), "%s was right", other)
	})
}
