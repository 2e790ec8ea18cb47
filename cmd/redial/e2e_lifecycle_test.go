package main

import (
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy/intercept/lab"
)

func TestCrashAndRestart(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		client := addHost(t, node, "client", 9)
		three := manifests(web("s1", "198.18.100.1", ip4(1)), web("s2", "198.18.100.2", ip4(1)),
			service("s3", `{clusterIPs: [198.18.100.3, "2001:db8:100::3"], ports: [{name: one, port: 80}, {name: two, port: 81}]}`),
			endpoints("s3", "[{name: one, port: 8080}, {name: two, port: 8080}]", ip4(1)),
			endpoints("s3", "[{name: one, port: 8080}, {name: two, port: 8080}]", ip6(1)))
		r := startRedial(t, three)
		r.write("gone.yaml", web("gone", "198.18.100.9", ip4(1)))
		before := proxyPorts(r.awaitServed("s1", "s2", "s3", "gone"))
		require.Len(t, before, 7)
		prober := startProber(client, "198.18.100.1:80")
		prober.awaitMore(t, 20)

		killed := time.Now()
		r.kill()
		assertRefused(t, client, "198.18.100.2:80")
		r.remove("gone.yaml")
		r = r.restart()
		after := proxyPorts(r.awaitServed("s1", "s2", "s3"))
		served := time.Now()
		prober.awaitMore(t, 50)

		delete(before, "gone/80/IPv4")
		assert.Equal(t, before, after)
		for _, program := range []string{"iptables-nft-save", "ip6tables-nft-save"} {
			out, err := node.Output(program)
			require.NoError(t, err)
			assert.Contains(t, out, "default/s3")
			assert.NotContains(t, out, "default/gone")
		}
		failures := prober.failures()
		assert.NotEmpty(t, failures, "the test is of no use if the proxy was not missed")
		for _, f := range failures {
			assert.True(t, f.ended.After(killed) && f.began.Before(served), "failed while there was a listener: %v", f)
		}
	})
}

// proxyPorts maps every frontend to its port.
func proxyPorts(s *status) map[string]uint16 {
	ports := map[string]uint16{}
	for _, svc := range s.Services {
		for _, p := range svc.Ports {
			for _, f := range p.Fronts {
				ports[fmt.Sprintf("%s/%d/%s", svc.Name, p.Port, f.Family)] = f.ProxyPort
			}
		}
	}
	return ports
}

// drainTest starts a proxy with one live connection, tells it to end, and waits until it has begun to.
func drainTest(t *testing.T, node *lab.Host, drain string) (*instance, *call) {
	t.Helper()
	addBackend(t, node, "a", 1)
	client := addHost(t, node, "client", 9)
	r := startRedial(t, web("web", clusterIP1, ip4(1)), "--drain-timeout="+drain)
	r.awaitServed("web")
	live := mustDial(t, client, clusterIP1+":80")
	r.signal(unix.SIGTERM)
	require.True(t, eventually(func() bool { return strings.Contains(r.log.String(), "stopping") }))
	return r, live
}

func TestDrainWaitsForLiveConnections(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		r, live := drainTest(t, node, "1h")
		assert.NoError(t, live.echo("draining"))
		// There is nobody else on this node who could serve them.
		assertAnswers(t, node, clusterIP1+":80", "a")
		r.write("all.yaml", web("web", "198.18.100.2", ip4(1)))
		awaitAnswer(t, node, "198.18.100.2:80", "a") // changes are followed
		select {
		case <-r.exited:
			require.FailNow(t, "ended before its connection did")
		default:
		}
		require.NoError(t, live.Close())
		assert.NoError(t, r.wait(), "exit status 0")
		assert.Contains(t, r.log.String(), "cut=0")
	})
}

func TestDrainTimeoutCuts(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		r, live := drainTest(t, node, "300ms")
		_, err := io.ReadAll(live)
		assert.ErrorIs(t, err, syscall.ECONNRESET, "the client must not take it for a regular end")
		assert.NoError(t, r.wait())
		assert.Contains(t, r.log.String(), "cut=1")
	})
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		r, live := drainTest(t, node, "1h")
		r.signal(unix.SIGTERM)
		err := r.wait()
		require.Error(t, err)
		assert.Contains(t, err.Error(), "terminated")
		_, err = io.ReadAll(live)
		// The kernel closes the socket of a dead process: with a reset only where unread bytes were left.
		if err != nil {
			assert.ErrorIs(t, err, syscall.ECONNRESET)
		}
	})
}

func TestSecondInstanceDoesNotStart(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		r := startRedial(t, web("web", clusterIP1, ip4(1)))
		r.awaitServed("web")
		rules := savedRules(t, node)
		out, err := runRedial("--manifests", t.TempDir(), "--admin-socket", r.socket)
		require.Error(t, err)
		assert.Contains(t, out, "another instance is running")
		assert.Contains(t, out, "--admin-socket")
		// Nor with a socket of its own: two would overwrite each other's rules.
		out, err = runRedial("--manifests", t.TempDir(), "--admin-socket", t.TempDir()+"/other.sock")
		require.Error(t, err)
		assert.Contains(t, out, "steers its traffic")
		assert.Equal(t, rules, savedRules(t, node))
		assertAnswers(t, node, clusterIP1+":80", "a")

		// What a killed process left does not count as an instance.
		r.kill()
		r = r.restart()
		r.awaitServed("web")
		assertAnswers(t, node, clusterIP1+":80", "a")
	})
}
