package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
)

// What changes in the manifests concerns new connections only.
func TestLiveConnectionsSurviveChanges(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		addBackend(t, node, "b", 2)
		client := addHost(t, node, "client", 9)
		r := startRedial(t, web("web", clusterIP1, ip4(1)))
		r.awaitServed("web")
		live := mustDial(t, client, clusterIP1+":80")
		require.Equal(t, "a", live.backend)
		proxyPort := r.status().front("web").ProxyPort

		r.write("all.yaml", web("web", clusterIP1, ip4(2)))
		awaitAnswer(t, client, clusterIP1+":80", "b")
		assert.NoError(t, live.echo("endpoint removed"))

		r.write("all.yaml", web("web", clusterIP1))
		r.await("no endpoint", func(s *status) bool { return !s.front("web").Serving })
		assertRefused(t, client, clusterIP1+":80")
		assert.NoError(t, live.echo("no endpoint left"))

		r.write("all.yaml", manifests(
			service("web", "{clusterIP: "+clusterIP1+", externalIPs: [198.18.110.1], ports: [{port: 81}]}"),
			endpoints("web", "[{port: 8080}]", ip4(2))))
		r.await("port renumbered", func(s *status) bool { return len(s.front("web").VIPs) == 2 })
		assertAnswers(t, client, clusterIP1+":81", "b")
		assertAnswers(t, client, "198.18.110.1:81", "b")
		assert.NoError(t, live.echo("port renumbered"))
		assert.Equal(t, proxyPort, r.status().front("web").ProxyPort, "the proxy port belongs to the name")

		syncs := r.status().Sync.Syncs
		r.remove("all.yaml")
		r.await("Service deleted", func(s *status) bool { return len(s.Services) == 0 && s.Sync.Syncs > syncs })
		out, err := node.Output("iptables-nft-save")
		require.NoError(t, err)
		assert.NotContains(t, out, "default/web")
		assert.NoError(t, live.echo("Service deleted"))

		r.write("all.yaml", web("web", clusterIP1, ip4(2)))
		r.awaitServed("web")
		assertAnswers(t, client, clusterIP1+":80", "b")
		assert.NoError(t, live.echo("Service made again"))
		require.NoError(t, live.Close())
	})
}

// A change of a Service is made before it is broken: whoever uses what stays the same does not notice.
func TestServiceChangesUnderTraffic(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		client := addHost(t, node, "client", 9)
		spec := func(rest string) string {
			return manifests(service("web", "{type: NodePort, clusterIP: "+clusterIP1+", "+rest+"}"), endpoints("web", "[{name: http, port: 8080}]", ip4(1)))
		}
		const http = "{name: http, port: 80, nodePort: 30080}"
		r := startRedial(t, spec("ports: ["+http+"]"))
		r.awaitServed("web")
		probers := []*prober{startProber(client, clusterIP1+":80"), startProber(client, "198.18.9.1:30080"), startProber(node, clusterIP1+":80")}
		for _, change := range []struct {
			rest string
			vips int
		}{
			{"externalIPs: [198.18.110.1], ports: [" + http + "]", 3},
			{"externalIPs: [198.18.110.2], sessionAffinity: ClientIP, ports: [" + http + "]", 3},
			{"ports: [" + http + ", {name: other, port: 81}]", 2},
			{"ports: [{name: other, port: 81}, " + http + "]", 2},
			{"ports: [" + http + "]", 2},
		} {
			syncs := r.status().Sync.Syncs
			r.write("all.yaml", spec(change.rest))
			r.await(change.rest, func(s *status) bool {
				for _, p := range s.service("web").Ports {
					if p.Name == "http" && len(p.Fronts) == 1 && len(p.Fronts[0].VIPs) == change.vips {
						return s.Sync.Syncs > syncs || change.vips == 2
					}
				}
				return false
			})
			probers[0].awaitMore(t, 20)
		}
		for _, p := range probers {
			p.stop(t)
		}
	})
}
