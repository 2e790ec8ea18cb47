package relaytest

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	"redial/proxy/relay"
)

// A Service whose clients stay until they have all there is leaves room for another, and for a third when the second does
// the same. Who has to wait is served as others leave.
func testFloodLeavesRoom(t *testing.T, new New) {
	const flood = 500
	engine, listen := new(relay.Config{MaxFDs: 1024}) // 768 for TCP: fewer than 384 connections
	defer func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		engine.Shutdown(ctx)
	}()
	b := balance(backend(t, echo))
	var listeners []TCPListener
	for range 3 {
		l := listenAnywhere(t, listen, netip.MustParseAddr("127.0.0.1"), b)
		l.Serve()
		listeners = append(listeners, l)
	}
	var floods [][]net.Conn
	for i, l := range listeners[:2] {
		var conns []net.Conn
		for range flood {
			conns = append(conns, dial(t, l))
		}
		floods = append(floods, conns)
		eventually(t, func() bool { return l.Stats().ShareWaits > 0 }, "the flood to have its share")
		other := dial(t, listeners[i+1])
		roundTrip(t, other, "let in")
		other.Close()
		assert.Zero(t, l.Stats().FDWaits)
	}
	first, second := listeners[0].Stats().Active, listeners[1].Stats().Active
	assert.Greater(t, first, 4*second, "who came first may keep what it has")
	assert.Greater(t, second, int64(31))
	for _, conns := range floods {
		for _, c := range conns[:flood-1] {
			c.Close()
		}
	}
	for i, l := range listeners[:2] {
		roundTrip(t, floods[i][flood-1], "the last of the queue")
		eventually(t, func() bool { return l.Stats().Accepted >= flood }, "all to be served")
	}
}

// Those beyond the limit wait, and nobody is refused.
func testMaxConnections(t *testing.T, new New) {
	_, l := start(t, new, relay.Config{MaxConnections: 3}, balance(backend(t, echo)))
	var conns []*net.TCPConn
	for range 5 {
		conns = append(conns, dial(t, l))
	}
	eventually(t, func() bool { return l.Stats().ShareWaits > 0 }, "the limit to be reached")
	assert.EqualValues(t, 3, l.Stats().Accepted)
	for i, c := range conns {
		roundTrip(t, c, "served")
		c.Close()
		eventually(t, func() bool { return l.Stats().Accepted >= uint64(min(i+4, 5)) }, "the next to be let in")
	}
	assert.LessOrEqual(t, l.Stats().ShareWaits, uint64(3), "once for each time")
}
