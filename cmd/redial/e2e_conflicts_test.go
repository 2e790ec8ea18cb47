package main

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/config"
	"redial/config/manifest"
	"redial/proxy"
	"redial/proxy/intercept/lab"
)

func TestTwoServicesWantOneNodePort(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		addBackend(t, node, "b", 2)
		client := addHost(t, node, "client", 9)
		nodePort := func(name, clusterIP string, backend int) string {
			return manifests(service(name, "{type: NodePort, clusterIP: "+clusterIP+", ports: [{port: 80, nodePort: 30080}]}"),
				endpoints(name, "[{port: 8080}]", ip4(backend)))
		}
		// The name of the first sorts last, so that what decides is who has the port.
		r := startRedial(t, nodePort("zfirst", "198.18.100.1", 1))
		r.awaitServed("zfirst")
		prober := startProber(client, "198.18.9.1:30080")

		r.write("second.yaml", nodePort("asecond", "198.18.100.2", 2))
		r.awaitServed("asecond")
		problem := r.awaitProblem("asecond", proxy.ReasonAddressConflict)
		assert.Contains(t, problem.Message, "30080")
		assert.Contains(t, problem.Message, "default/zfirst")
		assert.Empty(t, r.status().service("zfirst").Problems)
		assertAnswers(t, client, "198.18.100.2:80", "b")
		assertAnswers(t, client, "198.18.100.1:80", "a")
		assertAnswers(t, client, "198.18.9.1:30080", "a")
		prober.stop(t)

		r.remove("all.yaml")
		r.awaitNoProblem("asecond")
		awaitAnswer(t, client, "198.18.9.1:30080", "b")
		assertAnswers(t, client, "198.18.100.2:80", "b")
	})
}

func TestProxyPortTakenByAnotherProcess(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		client := addHost(t, node, "client", 9)
		r := startRedial(t, web("web", clusterIP1, ip4(1)))
		preferred := r.awaitServed("web").front("web").ProxyPort
		r.kill()

		squatter, err := net.Listen("tcp4", fmt.Sprintf(":%d", preferred))
		require.NoError(t, err)
		defer squatter.Close()
		r = r.restart()
		moved := r.awaitServed("web").front("web").ProxyPort
		assert.NotEqual(t, preferred, moved)
		assertAnswers(t, client, clusterIP1+":80", "a")
		assert.Empty(t, r.status().service("web").Problems)
	})
}

func TestProxyPortsExhausted(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		r := startRedial(t, manifests(web("s1", "198.18.100.1", ip4(1)), web("s2", "198.18.100.2", ip4(1))), "--proxy-port-range=61000-61001")
		r.awaitServed("s1", "s2")
		r.write("third.yaml", web("s3", "198.18.100.3", ip4(1)))
		problem := r.awaitProblem("s3", proxy.ReasonListenFailed)
		assert.Contains(t, problem.Message, "--proxy-port-range", "what to do about it")
		for _, address := range []string{"198.18.100.1:80", "198.18.100.2:80"} {
			assertAnswers(t, node, address, "a")
		}
		r.write("all.yaml", web("s2", "198.18.100.2", ip4(1)))
		r.awaitServed("s3")
		r.awaitNoProblem("s3")
		assertAnswers(t, node, "198.18.100.3:80", "a")
		assertAnswers(t, node, "198.18.100.2:80", "a")
	})
}

// Whatever is wrong with an object is said, and is nobody else's business.
func TestBadObjectsDisturbNothing(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		client := addHost(t, node, "client", 9)
		r := startRedial(t, web("web", clusterIP1, ip4(1)))
		r.awaitServed("web")
		prober := startProber(client, clusterIP1+":80")

		r.write("family.yaml", manifests(
			service("family", `{clusterIP: 198.18.100.2, externalIPs: ["2001:db8::5", 198.18.110.2, "198.18.110.2x"], ports: [{port: 80}]}`),
			endpoints("family", "[{port: 8080}]", ip4(1))))
		assert.Contains(t, r.awaitProblem("family", config.ReasonWrongFamily).Message, "spec.externalIPs[0]")
		assert.Contains(t, r.awaitProblem("family", config.ReasonInvalidAddress).Message, "spec.externalIPs[2]")
		r.awaitServed("family")
		assertAnswers(t, client, "198.18.110.2:80", "a")

		r.write("ports.yaml", manifests(
			service("ports", `{clusterIP: 198.18.100.3, ports: [{name: zero, port: 0}, {name: much, port: 70000}, {name: good, port: 80}]}`),
			endpoints("ports", "[{name: good, port: 8080}]", ip4(1))))
		r.awaitProblem("ports", config.ReasonInvalidPort)
		r.awaitServed("ports")
		assertAnswers(t, client, "198.18.100.3:80", "a")
		var named []string
		for _, p := range r.status().service("ports").Problems {
			named = append(named, p.Port)
		}
		assert.ElementsMatch(t, []string{"zero", "much"}, named, "each says which port it is")

		r.write("unknown.yaml", manifests(
			service("unknown", "{clusterIP: 198.18.100.4, port: 80}"),
			web("beside", "198.18.100.5", ip4(1)),
			service("type", "{clusterIP: 198.18.100.6, ports: [{port: eighty}]}"),
			"this is: [no YAML\n"))
		var spoilt []manifest.Problem
		r.await("three spoilt documents", func(s *status) bool {
			spoilt = slices.DeleteFunc(s.Problems, func(p manifest.Problem) bool { return !strings.HasSuffix(p.File, "unknown.yaml") })
			return len(spoilt) == 3
		})
		for i, want := range []struct {
			document int
			message  string
		}{{1, `spec.port`}, {4, "spec.ports[0].port"}, {5, "yaml"}} {
			p := spoilt[i]
			assert.Equal(t, want.document, p.Document, "%+v", p)
			assert.Contains(t, p.Message, want.message)
		}
		r.awaitServed("beside")
		assertAnswers(t, client, "198.18.100.5:80", "a")

		// The same VIP twice, and one that is another Service's.
		r.write("taken.yaml", manifests(
			service("taken", "{clusterIP: "+clusterIP1+", externalIPs: [198.18.110.9], ports: [{port: 80}]}"), endpoints("taken", "[{port: 8080}]", ip4(1))))
		assert.Contains(t, r.awaitProblem("taken", proxy.ReasonAddressConflict).Message, "default/web")
		r.awaitServed("taken")
		assertAnswers(t, client, "198.18.110.9:80", "a")

		prober.stop(t)
		assert.Zero(t, r.status().Sync.Failures)
		assert.Empty(t, r.status().service("web").Problems)
	})
}
