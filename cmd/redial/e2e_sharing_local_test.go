package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy"
	"redial/proxy/intercept/lab"
	"redial/proxy/intercept/local"
)

// withFDs is an instance that may have so many file descriptors. before is put before its command.
func (r *instance) withFDs(n int, before string) *instance {
	r.t.Helper()
	self, err := os.Executable()
	require.NoError(r.t, err)
	limited := exec.Command("sh", append([]string{"-c", fmt.Sprintf(`ulimit -n %d && exec %s "$0" "$@"`, n, before), self}, r.cmd.Args[1:]...)...)
	limited.Env, limited.Stderr = r.cmd.Env, r.cmd.Stderr
	r.cmd = limited
	return r
}

// needsSharing skips a test where VIPs cannot share listeners.
func needsSharing(t *testing.T) {
	t.Helper()
	routes, err := local.New(local.Config{})
	require.NoError(t, err)
	defer routes.Close()
	if err := routes.Shares(false); err != nil {
		t.Skip("VIPs cannot share listeners here: " + err.Error())
	}
}

// plain is nth without a NodePort, and with a port of one's choice.
func plain(i, port int) string {
	targets := fmt.Sprintf("[{name: http, port: %d}]", firstNumbered+i)
	return manifests(
		service(nthName(i), fmt.Sprintf(`{clusterIP: %s, clusterIPs: [%q, %q], ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv4, IPv6], `+
			`ports: [{name: http, port: %d}]}`, nth4(i), nth4(i), nth6(i), port)),
		endpoints(nthName(i), targets, ip4(1)), endpoints(nthName(i), targets, ip6(1)))
}

// Without netfilter, and with many more Services than descriptors: each address leads to its own Service's backend.
func TestServicesShareListenersWithoutIPTables(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		needsSharing(t)
		const services = 120
		backends := startNumbered(t, node, services)
		client := addHost(t, node, "client", 2)
		foreign := serveOn(t, node, "foreign", ":8000")
		defer foreign.refuse()
		dir := t.TempDir()
		for i := range services - 2 {
			writeFile(t, fmt.Sprintf("%s/%d.yaml", dir, i), plain(i, 80))
		}
		r := newInstance(t, dir, "--interception=local").withFDs(512, "")
		r.start()
		r.awaitServed(nthName(0), nthName(services-3))
		// These come last. One has a NodePort, the other the port of another process.
		const beside, squatted = services - 2, services - 1
		r.write("zz-beside.yaml", nth(beside))
		r.write("zz-squatted.yaml", plain(squatted, 8000))
		s := r.awaitServed(nthName(beside), nthName(squatted))
		shared := 0
		for _, svc := range s.Services {
			require.Empty(t, svc.Problems, svc.Name)
			for _, f := range svc.Ports[0].Fronts {
				if f.Shared {
					shared++
				}
			}
		}
		assert.Greater(t, shared, services)
		require.True(t, s.front(nthName(beside)).Shared)
		require.True(t, s.front(nthName(squatted)).Shared)
		for i := range services {
			port := "80"
			if i == squatted {
				port = "8000"
			}
			hosts := []*lab.Host{client}
			if i%10 == 0 || i >= beside {
				hosts = append(hosts, node, backends.host)
			}
			for _, h := range hosts {
				assertAnswers(t, h, net.JoinHostPort(nth4(i), port), nthName(i))
				assertAnswers(t, h, net.JoinHostPort(nth6(i), port), nthName(i))
			}
			require.False(t, t.Failed(), "that will do")
		}
		nodePort := fmt.Sprint(30000 + beside)
		assertAnswers(t, client, net.JoinHostPort("198.18.2.1", nodePort), nthName(beside))
		assertAnswers(t, client, net.JoinHostPort("2001:db8:2::1", nodePort), nthName(beside))
		assertAnswers(t, node, net.JoinHostPort("127.0.0.1", nodePort), nthName(beside))
		assertAnswers(t, client, "198.18.2.1:8000", "foreign")
		assertAnswers(t, client, "[2001:db8:2::1]:8000", "foreign")
		out := statusOf(t, r)
		assertLine(t, fmt.Sprintf(`%d frontends share \d+ proxy ports, for want of .* descriptors \(512\); 0 connections were reset there as nobody's`, shared), out)
		assertLine(t, fmt.Sprintf(`default/%s +http 8000/TCP +%s +\d+ shared +served .*`, nthName(squatted), strings.ReplaceAll(nth4(squatted), ".", `\.`)), out)

		// What somebody else redirects to the address comes as what it is then, whatever it was before.
		_, err := node.Output("iptables", "-t", "nat", "-A", "PREROUTING", "-d", "198.18.2.1", "-p", "tcp", "--dport", "9999",
			"-j", "DNAT", "--to-destination", net.JoinHostPort(nth4(squatted), "8000"))
		if assert.NoError(t, err) {
			assertAnswers(t, client, "198.18.2.1:9999", nthName(squatted))
		}

		// No endpoint: refused, and not left to the other process. And back.
		for _, address := range []string{net.JoinHostPort(nth4(squatted), "8000"), net.JoinHostPort(nth6(squatted), "8000")} {
			r.write("zz-squatted.yaml", strings.ReplaceAll(plain(squatted, 8000), "endpoints: [{", "endpoints: [{conditions: {ready: false}, "))
			r.await("refusing", func(s *status) bool { return !s.front(nthName(squatted)).Serving && s.Sync.Error == "" })
			for _, h := range []*lab.Host{client, node} {
				require.True(t, eventually(func() bool { _, err := ask(h, address); return errors.Is(err, syscall.ECONNREFUSED) }), "from %s to %s", h.Name, address)
				assertRefused(t, h, address)
			}
			r.write("zz-squatted.yaml", plain(squatted, 8000))
			awaitAnswer(t, client, address, nthName(squatted))
		}
		r.remove("zz-beside.yaml")
		r.await("it to be gone", func(s *status) bool { return len(s.Services) == services-1 })
		_, err = ask(client, net.JoinHostPort("198.18.2.1", nodePort))
		assert.Error(t, err)
		r.write("zz-beside.yaml", nth(beside))
		awaitAnswer(t, client, net.JoinHostPort(nth6(beside), "80"), nthName(beside))

		r.kill()
		assertRefused(t, client, net.JoinHostPort(nth4(beside), "80"))
		next := newInstance(t, dir, "--interception=local").withFDs(512, "")
		next.start()
		next.awaitServed(nthName(0), nthName(squatted))
		for i := range services - 1 {
			assertAnswers(t, client, net.JoinHostPort(nth4(i), "80"), nthName(i))
		}
	})
}

// Without the privileges that it takes, the Services beyond the limit say so, and the others are served.
func TestListenersCannotBeShared(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		const services = 60
		startNumbered(t, node, services)
		dir := t.TempDir()
		for i := range services {
			writeFile(t, fmt.Sprintf("%s/%d.yaml", dir, i), plain(i, 80))
		}
		r := newInstance(t, dir, "--interception=local").withFDs(512, "setpriv --bounding-set=-bpf,-sys_admin --")
		r.start()
		s := r.await("all served or not", func(s *status) bool { return len(s.Services) == services && s.Sync.Syncs > 0 })
		served := 0
		for _, svc := range s.Services {
			if len(svc.Problems) == 0 {
				served++
				continue
			}
			assert.Equal(t, proxy.ReasonListenFailed, svc.Problems[0].Reason)
			assert.Contains(t, svc.Problems[0].Message, "CAP_BPF")
		}
		assert.Positive(t, served)
		assert.Less(t, served, services)
		assert.Contains(t, s.Local.NotShared, "CAP_BPF")
		assert.Equal(t, 1, strings.Count(r.log.String(), "Service ports cannot share listeners here"), "said once")
	})
}
