package relay

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/balancer"
)

// What is in use is all given back, and a loop that is held up is seen to be.
func TestUsage(t *testing.T) {
	r := New(Config{MaxFDs: 400, MaxConnections: 100})
	assert.Zero(t, r.Lag(time.Hour), "no loops yet")
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	b := balancer.New(nil)
	b.Update(balancer.Config{Backends: []balancer.Backend{{Addr: server.Addr().(*net.TCPAddr).AddrPort(), Weight: 1}}})
	var l *Listener
	for port := uint16(40000); l == nil; port++ {
		l, _ = r.Listen(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), "test", b)
	}
	l.Serve()
	none := Usage{Descriptors: 2, MaxDescriptors: 300, MaxConnections: 100, MaxSessions: 100, Listeners: 1, MaxListeners: 75}
	assert.Equal(t, none, r.Usage())
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	one := none
	one.Descriptors, one.Connections = 4, 1
	require.Eventually(t, func() bool { return r.Usage() == one }, 20*time.Second, time.Millisecond)
	c.Close()
	served, err := server.Accept()
	require.NoError(t, err)
	served.Close()
	require.Eventually(t, func() bool { return r.Usage() == none }, 20*time.Second, time.Millisecond)

	assert.Positive(t, r.Lag(time.Hour))
	held, goOn := make(chan struct{}), make(chan struct{})
	require.True(t, l.socket.loop.do(func() { close(held); <-goOn }))
	<-held
	assert.Equal(t, time.Millisecond, r.Lag(time.Millisecond))
	close(goOn)
	r.Shutdown(context.Background())
	assert.Zero(t, r.Usage().Descriptors)
}
