package proxy

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"redial/config"
)

// drains has connections end as soon as their endpoint is gone.
func drains(s *v1.Service) { s.Annotations = map[string]string{"redial/drain-timeout": "0"} }

// liveOn is a connection that has been answered.
func liveOn(t *testing.T, f FrontendStatus) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", f.address())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	_, err = askOn(c)
	require.NoError(t, err)
	return c
}

func assertEnds(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(patience))
	_, err := c.Read(make([]byte, 1))
	assert.ErrorIs(t, err, io.EOF)
}

func (g *rig) formerListeners() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, list := range g.former {
		n += len(list)
	}
	return n
}

// With a Service port, all of its endpoints are gone.
func TestConnectionsOfAGonePortEnd(t *testing.T) {
	for name, remove := range map[string]func(*rig){
		"Service": func(g *rig) { g.tracker.DeleteService(config.ServiceName{Namespace: "default", Name: "web"}) },
		"port": func(g *rig) {
			g.tracker.SetService(object("web", "198.18.0.1", drains, func(s *v1.Service) { s.Spec.Ports[0].Name = "other" }))
		},
		"type": func(g *rig) { g.tracker.SetService(object("web", "None")) },
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, testPorts)
			a := backend(t, "a")
			g.tracker.SetService(object("web", "198.18.0.1", drains))
			g.endpoints("web", "http", a)
			g.tracker.SetService(object("kept", "198.18.0.2"))
			g.endpoints("kept", "http", a)
			c, kept := liveOn(t, g.served("web", "http")), liveOn(t, g.served("kept", "http"))
			remove(g)
			assertEnds(t, c)
			g.tracker.DeleteService(config.ServiceName{Namespace: "default", Name: "kept"})
			g.eventually(func() bool { _, ok := g.frontend("kept", "http"); return !ok }, "the other one to be closed")
			_, err := askOn(kept)
			assert.NoError(t, err, "nobody has asked for its end")
			assert.Zero(t, g.formerListeners())
		})
	}
}

// A connection ends with its endpoint, whatever has become of the socket that it came in by.
func TestConnectionsOfAMovedPortFollowItsEndpoints(t *testing.T) {
	g := start(t, testPorts)
	a, b := backend(t, "a"), backend(t, "b")
	g.tracker.SetService(object("web", "198.18.0.1"))
	g.endpoints("web", "http", a)
	c := liveOn(t, g.served("web", "http"))
	g.mu.Lock()
	for _, f := range g.frontends {
		f.broken = errors.New("its port is lost")
	}
	g.mu.Unlock()
	g.Resync()
	g.eventually(func() bool { return g.formerListeners() == 1 }, "the frontend to be opened anew")
	g.tracker.SetService(object("web", "198.18.0.1", drains))
	g.endpoints("web", "http", a, b)
	g.eventually(func() bool { return len(g.served("web", "http").Backends) == 2 }, "the news to arrive")
	_, err := askOn(c)
	require.NoError(t, err, "its endpoint is still there")

	g.endpoints("web", "http", b)
	assertEnds(t, c)
	g.eventually(func() bool { return g.cfg.Relay.Totals().TCP.Active == 0 }, "all connections to end")
	g.endpoints("web", "http", a, b)
	g.eventually(func() bool { return g.formerListeners() == 0 }, "the old listener to be forgotten")
}

// Nor does it matter why the frontend is no more.
func TestConnectionsOfAnotherPolicyFollowTheirEndpoints(t *testing.T) {
	g := start(t, testPorts)
	g.tracker.SetNode(config.Node{Name: here})
	a := backend(t, "a")
	g.tracker.SetService(object("web", "198.18.0.1", drains, local(true, false)))
	g.place("web", placed{addr: a, node: here})
	c := liveOn(t, g.served("web", "http"))
	g.tracker.SetService(object("web", "198.18.0.1", drains))
	g.eventually(func() bool { return g.formerListeners() == 1 }, "the frontend to be closed")
	_, err := askOn(c)
	require.NoError(t, err, "its endpoint is still there")
	g.tracker.SetService(object("web", "198.18.0.1"))
	g.place("web")
	g.eventually(func() bool {
		f, _ := g.frontend("web", "http")
		return !f.Serving
	}, "the endpoint to go")
	_, err = askOn(c)
	require.NoError(t, err, "nobody asks for its end any more")
	g.tracker.SetService(object("web", "198.18.0.1", drains))
	assertEnds(t, c)
}
