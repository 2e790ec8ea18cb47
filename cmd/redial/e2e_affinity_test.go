package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
)

func sticky(seconds int, backends ...string) string {
	return manifests(unhedged(service("web", fmt.Sprintf("{type: NodePort, clusterIP: %s, ports: [{port: 80, nodePort: 30080}], sessionAffinity: ClientIP, "+
		"sessionAffinityConfig: {clientIP: {timeoutSeconds: %d}}}", clusterIP1, seconds))),
		endpoints("web", "[{port: 8080}]", backends...))
}

// assertPinned expects n connections to reach one backend, and returns it.
func assertPinned(t *testing.T, from *lab.Host, addresses ...string) string {
	t.Helper()
	first, err := ask(from, addresses[0])
	require.NoError(t, err)
	for i := range 6 {
		assertAnswers(t, from, addresses[i%len(addresses)], first)
	}
	return first
}

func TestClientIPAffinity(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		backends := map[string]*backend{}
		for i, name := range []string{"a", "b", "c"} {
			backends[name] = addBackend(t, node, name, i+1)
		}
		one, two := addHost(t, node, "one", 8), addHost(t, node, "two", 9)
		all := []string{ip4(1), ip4(2), ip4(3)}
		r := startRedial(t, sticky(600, all...), "--dial-try-timeout=1h", "--dial-timeout=1h")
		r.awaitServed("web")
		vip := clusterIP1 + ":80"

		pin := assertPinned(t, one, vip, "198.18.8.1:30080")
		assert.NotEqual(t, pin, assertPinned(t, two, vip), "the next client has the next turn")
		assert.Equal(t, 2, r.status().front("web").Pins)

		// The pinned backend dies and nobody says so.
		dead := backends[pin]
		dead.refuse()
		moved := assertPinned(t, one, vip)
		assert.NotEqual(t, pin, moved)
		dead.serve()
		assert.Equal(t, moved, assertPinned(t, one, vip), "it does not come back by itself")

		// Down to no endpoint and up again: affinity is the Service's, not the endpoints'.
		r.write("all.yaml", sticky(600))
		r.await("no endpoint", func(s *status) bool { return !s.front("web").Serving })
		assertRefused(t, one, vip)
		r.write("all.yaml", sticky(600, all...))
		r.awaitServed("web")
		assertPinned(t, one, vip)
		assertPinned(t, two, vip)

		// The timeout changes and pins stay; without affinity turns are taken again.
		pin = assertPinned(t, one, vip)
		r.write("all.yaml", sticky(1200, all...))
		r.await("timeout changed", func(s *status) bool { return s.service("web").Ports[0].Affinity == 20*time.Minute })
		assert.Equal(t, pin, assertPinned(t, one, vip))
		r.write("all.yaml", unhedged(web("web", clusterIP1, all...)))
		r.await("no affinity", func(s *status) bool { return s.service("web").Ports[0].Affinity == 0 && len(s.front("web").VIPs) == 1 })
		answers, failures := crowd(6, 1, one, vip)
		assert.Empty(t, failures)
		assert.Equal(t, map[string]int{"a": 2, "b": 2, "c": 2}, answers)
	})
}

func TestAffinityExpires(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		addBackend(t, node, "b", 2)
		r := startRedial(t, sticky(600, ip4(1), ip4(2)), "--dial-try-timeout=1h", "--dial-timeout=1h")
		r.awaitServed("web")
		pin := assertPinned(t, node, clusterIP1+":80")
		// A live change to a short timeout holds for the pin there is.
		r.write("all.yaml", sticky(1, ip4(1), ip4(2)))
		r.await("timeout changed", func(s *status) bool { return s.service("web").Ports[0].Affinity == time.Second })
		time.Sleep(1100 * time.Millisecond) // nothing but time passing ends a pin
		name, err := ask(node, clusterIP1+":80")
		require.NoError(t, err)
		assert.NotEqual(t, pin, name)
	})
}
