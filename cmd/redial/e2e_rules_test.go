package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
)

// Whoever could reach the proxy ports directly would get around whatever rules decide about.
func TestProxyPortsAreRefusedDirectly(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		pod := addBackend(t, node, "a", 1)
		client := addHost(t, node, "client", 9)
		r := startRedial(t, manifests(service("web", `{type: NodePort, clusterIPs: [198.18.100.1, "2001:db8:100::1"], ports: [{port: 80, nodePort: 30080}]}`),
			endpoints("web", "[{port: 8080}]", ip4(1)), endpoints("web", "[{port: 8080}]", ip6(1))))
		port := r.awaitServed("web").front("web").ProxyPort
		require.NotZero(t, port)
		for _, from := range []*lab.Host{client, pod.host, node} {
			assertRefused(t, from, fmt.Sprintf("198.18.9.1:%d", port))
			assertRefused(t, from, fmt.Sprintf("[2001:db8:9::1]:%d", port))
			assertAnswers(t, from, "198.18.9.1:30080", "a")
		}
		assertRefused(t, node, fmt.Sprintf("127.0.0.1:%d", port))
		assertRefused(t, node, fmt.Sprintf("[::1]:%d", port))
	})
}

func TestRulesHealUnderTraffic(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		client := addHost(t, node, "client", 9)
		r := startRedial(t, web("web", clusterIP1, ip4(1)), "--iptables-sync-period=1s")
		r.awaitServed("web")
		live, liveOnNode := mustDial(t, client, clusterIP1+":80"), mustDial(t, node, clusterIP1+":80")

		damage := []struct {
			what string
			args []string
		}{
			{"flushed", []string{"-t", "nat", "-F"}},
			{"the jump from OUTPUT is gone", []string{"-t", "nat", "-F", "OUTPUT"}},
			{"the jump from PREROUTING is gone", []string{"-t", "nat", "-F", "PREROUTING"}},
			{"the guard of the proxy ports is gone", []string{"-F", "REDIAL-INPUT"}},
		}
		for i, d := range damage {
			syncs := r.status().Sync.Syncs
			out, err := node.Output("iptables-nft", append([]string{"-w"}, d.args...)...)
			require.NoError(t, err, out)
			r.await("healed: "+d.what, func(s *status) bool {
				return s.Sync.Repairs == uint64(i+1) && s.Sync.Syncs > syncs && s.Sync.Error == ""
			})
			assertAnswers(t, client, clusterIP1+":80", "a")
			assertAnswers(t, node, clusterIP1+":80", "a")
			assertRefused(t, client, fmt.Sprintf("198.18.9.1:%d", r.status().front("web").ProxyPort))
			assert.NoError(t, live.echo(d.what))
			assert.NoError(t, liveOnNode.echo(d.what))
		}
		assert.Contains(t, r.log.String(), "changed by somebody else")
	})
}

// counters and comments of iptables-save differ from dump to dump.
var volatile = regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]`)

// savedRules are all rules of the node, in both modes and families, without what changes by itself.
func savedRules(t *testing.T, node *lab.Host) string {
	t.Helper()
	var all strings.Builder
	for _, program := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		out, err := node.Output(program)
		require.NoError(t, err)
		fmt.Fprintf(&all, "== %s\n%s", program, volatile.ReplaceAllString(out, ""))
	}
	return all.String()
}

func TestCleanupLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		// Rules of others, in every table and mode that is ours too.
		for _, mode := range []string{"nft", "legacy"} {
			for _, family := range []string{"iptables", "ip6tables"} {
				for _, rule := range []string{
					"-t nat -N KUBE-SERVICES", "-t nat -A PREROUTING -j KUBE-SERVICES", "-t nat -A KUBE-SERVICES -p tcp --dport 9 -j RETURN",
					"-N REDIALLY", "-A INPUT -p tcp --dport 9 -j REDIALLY", "-t mangle -A PREROUTING -p tcp --dport 9 -j MARK --set-mark 0x1",
				} {
					_, err := node.Output(family+"-"+mode, strings.Fields(rule)...)
					require.NoError(t, err)
				}
			}
		}
		before := savedRules(t, node)
		for mode, other := range map[string]string{"nft": "legacy", "legacy": "nft"} {
			r := startRedial(t, manifests(service("web", `{type: NodePort, clusterIPs: [198.18.100.1, "2001:db8:100::1"], ports: [{port: 80, nodePort: 30080}]}`),
				endpoints("web", "[{port: 8080}]", ip4(1)), endpoints("web", "[{port: 8080}]", ip6(1))), "--iptables-mode="+mode)
			r.awaitServed("web")
			assertAnswers(t, node, "198.18.100.1:80", "a")
			assertAnswers(t, node, "[2001:db8:100::1]:80", "a")
			during := savedRules(t, node)
			require.Contains(t, during, "REDIAL-SERVICES")

			out, err := runRedial("cleanup")
			assert.Error(t, err)
			assert.Contains(t, out, "running")
			assert.Equal(t, during, savedRules(t, node), "refused, so nothing is touched")

			r.kill()
			assert.Equal(t, during, savedRules(t, node), "rules stay when the process dies")
			for range 2 {
				// Whichever mode is asked for, nothing of ours stays in either.
				out, err = runRedial("cleanup", "--iptables-mode", other)
				require.NoError(t, err, out)
				assert.Equal(t, before, savedRules(t, node))
			}
		}
	})
}
