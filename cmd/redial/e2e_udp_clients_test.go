package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/config"
	"redial/proxy/intercept/lab"
)

// Without an endpoint clients are told so, at once, by the socket and not by a rule.
func TestNoExecForZeroEndpointsOfUDP(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addUDPBackend(t, node, "a", 1)
		e := watchExecs(t)
		dir := t.TempDir()
		slices := func(v4, v6 []string) string {
			const ports = "[{port: 8053, protocol: UDP}]"
			return manifests(endpoints("dns", ports, v4...), endpoints6("dns", ports, v6...))
		}
		writeFile(t, filepath.Join(dir, "svc.yaml"), service("dns",
			`{type: NodePort, clusterIPs: [198.18.100.1, "2001:db8:100::1"], ports: [{port: 53, nodePort: 30053, protocol: UDP}]}`))
		writeFile(t, filepath.Join(dir, "eps.yaml"), slices(nil, nil))
		r := newInstance(t, dir, "--iptables-sync-period=1h") // looks at the rules are execs, too
		r.cmd.Env = append(r.cmd.Env, "PATH="+e.path)
		r.start()
		r.await("steered though nothing serves", func(s *status) bool {
			fronts := s.port("dns", config.UDP).Fronts
			return len(fronts) == 2 && len(fronts[0].VIPs) == 2 && len(fronts[1].VIPs) == 2
		})
		n := len(e.all())

		// Pods of their own: a host is sent six refusals in a row at most, and then one in a second (icmp_ratelimit).
		var flows []*flow
		for i, address := range []string{"198.18.100.1:53", "198.18.255.1:30053", "[2001:db8:100::1]:53", "[2001:db8:ff::1]:30053"} {
			flows = append(flows, mustOpenFlow(t, addHost(t, node, fmt.Sprintf("client%d", i), 10+i), address))
		}
		for _, address := range []string{
			"198.18.100.1:53", "127.0.0.1:30053", "198.18.255.1:30053", "[2001:db8:100::1]:53", "[::1]:30053", "[2001:db8:ff::1]:30053",
		} {
			flows = append(flows, mustOpenFlow(t, node, address))
		}
		assertRefused := func() {
			for _, f := range flows {
				name, err := f.exchange(udpPatience)
				require.ErrorIs(t, err, syscall.ECONNREFUSED, "%s: %q", f, name)
			}
		}
		serving := func(want bool) func(*status) bool {
			return func(s *status) bool {
				fronts := s.port("dns", config.UDP).Fronts
				return fronts[0].Serving == want && fronts[1].Serving == want
			}
		}
		for range 3 {
			assertRefused()
			r.write("eps.yaml", slices([]string{ip4(1)}, []string{ip6(1)}))
			r.await("clients served", serving(true))
			for _, f := range flows {
				name, err := f.exchange(udpPatience)
				require.NoError(t, err, "%s", f)
				assert.Equal(t, "a", name, "%s", f)
			}
			r.write("eps.yaml", slices(nil, nil))
			r.await("clients refused", serving(false))
		}
		assertRefused()
		assert.Empty(t, e.all()[n:], "programs run for endpoints that come and go")
	})
}

func TestClientIPAffinityOfUDP(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		backends := map[string]*udpBackend{}
		for i, name := range []string{"a", "b", "c"} {
			backends[name] = addUDPBackend(t, node, name, i+1)
		}
		client := addHost(t, node, "client", 9)
		spec := func(affinity string) string {
			return manifests(service("dns", "{type: NodePort, clusterIP: 198.18.100.1, sessionAffinity: "+affinity+
				", ports: [{port: 53, nodePort: 30053, protocol: UDP}]}"),
				endpoints("dns", "[{port: 8053, protocol: UDP}]", ip4(1), ip4(2), ip4(3)))
		}
		r := startRedial(t, spec("ClientIP"))
		r.awaitServed("dns")
		addresses := []string{clusterIP1 + ":53", "198.18.9.1:30053"}
		// pinned sends datagrams from new ports and returns the one backend that has answered.
		pinned := func(n int) string {
			t.Helper()
			answers := map[string]int{}
			last := ""
			for i := range n {
				name, err := askUDP(client, addresses[i%2])
				require.NoError(t, err)
				answers[name]++
				last = name
			}
			assert.Len(t, answers, 1, "%v", answers)
			return last
		}
		pin := pinned(15)
		backends[pin].refuse()
		moved := pinned(15)
		assert.NotEqual(t, pin, moved)
		backends[pin].serve()
		// A backend that has refused is left alone for two seconds by everyone; what holds the client for longer is its pin.
		for until := time.Now().Add(2200 * time.Millisecond); time.Now().Before(until); time.Sleep(tick) {
			assert.Equal(t, moved, pinned(1))
		}
		assert.Equal(t, moved, pinned(15))
		assert.Equal(t, 1, r.status().front("dns").Pins)

		r.write("all.yaml", spec("None"))
		r.await("no affinity", func(s *status) bool { return s.port("dns", config.UDP).Affinity == 0 })
		answers := map[string]int{}
		for range 15 {
			name, err := askUDP(client, addresses[0])
			require.NoError(t, err)
			answers[name]++
		}
		assert.Equal(t, map[string]int{"a": 5, "b": 5, "c": 5}, answers)
	})
}

// A client that asks once, from a port of its own, is most of DNS. Nothing of it stays.
func TestClientsThatAskOnce(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addUDPBackend(t, node, "a", 1)
		addUDPBackend(t, node, "b", 2)
		client := addHost(t, node, "client", 9)
		lasting := func(timeout string) string {
			return strings.Replace(resolver("dns", clusterIP1, ip4(1), ip4(2)), "namespace: default}",
				fmt.Sprintf("namespace: default, annotations: {redial/udp-timeout: %s}}", timeout), 1)
		}
		r := startRedial(t, lasting("1h"))
		r.awaitServed("dns")
		assertAnswersUDP(t, client, clusterIP1+":53", "a", "b")
		idle := countFDs(t, r) - 1 // its session's

		const clients, atOnce, firstPort = 3000, 20, 10000
		var next, most atomic.Int64
		var running sync.WaitGroup
		failures := make([]error, clients)
		for range atOnce {
			running.Go(func() {
				for i := next.Add(1) - 1; i < clients; i = next.Add(1) - 1 {
					f, err := openFlow(client, firstPort+int(i), clusterIP1+":53")
					if err == nil {
						_, err = f.exchange(udpPatience)
						f.Close()
					}
					failures[i] = err
					if i%500 == 499 {
						most.Store(max(most.Load(), int64(countFDs(t, r))))
					}
				}
			})
		}
		running.Wait()
		for i, err := range failures {
			require.NoError(t, err, "client %d", i)
		}
		assert.Greater(t, most.Load(), int64(idle+300), "the test is of no use if there were no sessions")
		r.write("all.yaml", lasting("1s"))
		stats := r.await("all sessions over", func(s *status) bool { return s.front("dns").Stats.Active == 0 }).front("dns").Stats
		assert.EqualValues(t, clients+1, stats.Accepted)
		assert.EqualValues(t, clients+1, stats.DatagramsOut)
		assert.EqualValues(t, clients+1, stats.Expired+stats.Evicted)
		assert.True(t, eventually(func() bool { return countFDs(t, r) <= idle }), "%d files, %d before", countFDs(t, r), idle)
		assertAnswersUDP(t, client, clusterIP1+":53", "a", "b")
	})
}

// Whatever is sent to one Service, the clients of another are answered.
func TestFloodOfOneService(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		a := addUDPBackend(t, node, "a", 1)
		serveUDPOn(t, a.host, "stats", ":8125", mute)
		client, flooder := addHost(t, node, "client", 8), addHost(t, node, "flooder", 9)
		documents := []string{service("stats", "{clusterIP: 198.18.100.1, ports: [{port: 8125, protocol: UDP}]}"),
			endpoints("stats", "[{port: 8125, protocol: UDP}]", ip4(1))}
		// More of them than a node has processors, so that some share one with the flood.
		const others = 4
		var names []string
		for i := range others {
			names = append(names, fmt.Sprintf("dns%d", i))
			documents = append(documents, resolver(names[i], fmt.Sprintf("198.18.101.%d", i+1), ip4(1)))
		}
		r := startRedial(t, manifests(documents...))
		r.awaitServed(append(names, "stats")...)

		stop := make(chan struct{})
		var flooding sync.WaitGroup
		for range 4 {
			flood := mustOpenFlow(t, flooder, "198.18.100.1:8125")
			flooding.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						flood.Write([]byte("noise"))
					}
				}
			})
		}
		r.await("the flood", func(s *status) bool { return s.front("stats").Stats.DatagramsIn > 1000 })
		before := r.status().front("stats").Stats.DatagramsIn
		for range 200 / others {
			for i := range others {
				name, err := askUDP(client, fmt.Sprintf("198.18.101.%d:53", i+1))
				require.NoError(t, err)
				require.Equal(t, "a", name)
			}
		}
		after := r.status().front("stats").Stats
		close(stop)
		flooding.Wait()
		assert.Greater(t, after.DatagramsIn, before+1000, "the flood went on")
	})
}
