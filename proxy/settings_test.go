package proxy

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"redial/config"
	"redial/proxy/relay"
)

func TestSettings(t *testing.T) {
	t.Parallel()
	of := func(s config.Settings) relay.Settings { return settings(&config.ServicePort{Settings: &s}, nil) }
	assert.Zero(t, settings(&config.ServicePort{}, nil), "nothing asked for")
	assert.Equal(t, relay.Settings{DialTimeout: time.Second, UDPTimeout: time.Minute, Hedge: time.Millisecond, MaxRetries: 3}, of(config.Settings{
		DialTimeout: config.SetTo(time.Second), UDPTimeout: config.SetTo(time.Minute),
		Hedge: config.SetTo(time.Millisecond), MaxRetries: config.SetTo[int32](3),
	}))
	assert.Equal(t, relay.Settings{ProxyProtocol: 2, IdleTimeout: time.Hour, MaxConnectionAge: time.Minute}, of(config.Settings{
		ProxyProtocol: 2, IdleTimeout: config.SetTo(time.Hour), MaxConnectionAge: config.SetTo(time.Minute),
	}))
	never := of(config.Settings{Hedge: config.SetTo[time.Duration](0), MaxRetries: config.SetTo[int32](0)})
	assert.Negative(t, never.Hedge)
	assert.Negative(t, never.MaxRetries)
}

// A limit is one for all frontends of a Service port, and comes and goes with the annotation while the sockets stay.
func TestLimitOfAServicePort(t *testing.T) {
	g := start(t, testPorts)
	limited := func(most string) {
		g.tracker.SetService(object("web", "198.18.0.1", func(s *v1.Service) {
			s.Annotations = map[string]string{"redial/max-connections": most, "redial/max-queue": "0"}
		}))
	}
	limited("1")
	g.endpoints("web", "http", backend(t, "a"))
	f := g.served("web", "http")
	// admitted is a connection that is not reset, or nil.
	admitted := func() net.Conn {
		c, err := net.Dial("tcp", f.address())
		if err != nil {
			return nil
		}
		t.Cleanup(func() { c.Close() })
		c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err = c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			c.Close()
			return nil
		}
		return c
	}
	g.eventually(func() bool { return admitted() != nil }, "the first one") // the one that found it served may not have ended yet
	refused := func() bool {
		c := admitted()
		if c != nil {
			c.Close()
		}
		return c == nil
	}
	g.eventually(refused, "the second to be refused")
	syncs := g.rec.count()
	limited("0")
	g.eventually(func() bool { return !refused() }, "the limit to go")
	assert.Equal(t, syncs, g.rec.count(), "no rule was written")
}

// Connections that wait for a limit's sake need not any more when it is gone.
func TestLimitThatGoesLetsTheQueueIn(t *testing.T) {
	for name, limit := range map[string]string{"connections": "redial/max-connections", "connections of a backend": "redial/max-connections-per-backend"} {
		t.Run(name, func(t *testing.T) {
			g := start(t, testPorts)
			limited := func(s *v1.Service) { s.Annotations = map[string]string{limit: "1", "redial/queue-timeout": "24h"} }
			g.tracker.SetService(object("web", "198.18.0.1", limited))
			g.endpoints("web", "http", backend(t, "a"))
			f := g.served("web", "http")
			held := liveOn(t, f)
			c, err := net.Dial("tcp", f.address())
			require.NoError(t, err)
			defer c.Close()
			g.eventually(func() bool { return g.Status().Services[0].Ports[0].Limit.Waiting == 1 }, "the second one to wait")
			g.tracker.SetService(object("web", "198.18.0.1"))
			_, err = askOn(c)
			assert.NoError(t, err)
			_, err = askOn(held)
			assert.NoError(t, err)
		})
	}
}

func TestLimitGoesWithItsPort(t *testing.T) {
	g := start(t, testPorts)
	limited := func(port string) func(*v1.Service) {
		return func(s *v1.Service) {
			s.Annotations = map[string]string{"redial/max-connections": "1"}
			s.Spec.Ports[0].Name = port
		}
	}
	for _, port := range []string{"http", "other"} {
		g.tracker.SetService(object("web", "198.18.0.1", limited(port)))
		g.endpoints("web", port, backend(t, "a"))
		g.served("web", port)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	assert.Len(t, g.limits, 1)
}
