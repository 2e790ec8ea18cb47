package relaytest

import (
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/relay"
)

// expectEnd waits for a connection's end on both sides, by FINs.
func expectEnd(t *testing.T, conn net.Conn, backend <-chan error) {
	t.Helper()
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, <-backend)
}

// echoThen is an echo that tells how its client has ended.
func echoThen(ended chan error) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		_, err := io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
		ended <- err
	}
}

func testIdleTimeout(t *testing.T, new New) {
	ended := make(chan error, 1)
	_, l := start(t, new, relay.Config{}, balance(backend(t, echoThen(ended))))
	old := dial(t, l)
	roundTrip(t, old, "begun before")
	l.Configure(relay.Settings{IdleTimeout: 200 * time.Millisecond})
	conn := dial(t, l)
	roundTrip(t, conn, "and then nothing")
	expectEnd(t, conn, ended)
	roundTrip(t, old, "has its own settings")
	assert.EqualValues(t, 1, l.Stats().Idle)
	assert.Zero(t, l.Stats().Resets)

	conn = dial(t, l)
	expectEnd(t, conn, ended) // not a byte ever
}

// Either direction is enough.
func testIdleTimeoutRenewed(t *testing.T, new New) {
	t.Parallel()
	_, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range 20 {
			<-tick.C
			c.Write([]byte("x"))
		}
		io.Copy(io.Discard, c)
	})))
	l.Configure(relay.Settings{IdleTimeout: time.Second})
	conn := dial(t, l)
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Len(t, got, 20)
	assert.EqualValues(t, 1, l.Stats().Idle)
}

// Each byte counts that a slow reader takes, also when nothing else is left to do.
func testIdleTimeoutSlowReader(t *testing.T, new New) {
	t.Parallel()
	_, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) {
		c.Write(make([]byte, 8<<20))
		io.Copy(io.Discard, c)
	})))
	l.Configure(relay.Settings{IdleTimeout: time.Second})
	conn := dial(t, l)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	buf := make([]byte, 8<<10) // 160 KB/s, while the send buffer holds megabytes
	for range 60 {
		<-tick.C
		_, err := conn.Read(buf)
		require.NoError(t, err)
	}
	assert.Zero(t, l.Stats().Idle)
}

// A receiver that takes nothing does not get a clean end: bytes are missing.
func testIdleTimeoutStuck(t *testing.T, new New) {
	t.Parallel()
	_, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) { c.Write(make([]byte, 64<<20)) })))
	l.Configure(relay.Settings{IdleTimeout: time.Second})
	conn := dial(t, l)
	eventually(t, func() bool { return l.Stats().Idle == 1 }, "the connection to be idle")
	_, err := io.Copy(io.Discard, conn)
	assert.ErrorIs(t, err, syscall.ECONNRESET)
}

func testMaxConnectionAge(t *testing.T, new New) {
	ended := make(chan error, 1)
	_, l := start(t, new, relay.Config{}, balance(backend(t, echoThen(ended))))
	l.Configure(relay.Settings{MaxConnectionAge: 500 * time.Millisecond})
	conn := dial(t, l)
	begun := time.Now()
	var err error
	for err == nil {
		_, err = conn.Write([]byte("x"))
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
	}
	<-ended // by a reset perhaps, as the client may have sent something in the same moment
	eventually(t, func() bool { return l.Stats().Active == 0 }, "the connection to end")
	assert.Equal(t, l.Stats().BytesIn, l.Stats().BytesOut, "nothing was left without its answer")
	assert.GreaterOrEqual(t, time.Since(begun), 440*time.Millisecond)
	assert.EqualValues(t, 1, l.Stats().Aged)
}

// What is on its way has some time, but not for ever.
func testMaxConnectionAgeStuck(t *testing.T, new New) {
	t.Parallel()
	data := random(16 << 20)
	_, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) { c.Write(data); io.Copy(io.Discard, c) })))
	l.Configure(relay.Settings{MaxConnectionAge: time.Second})
	stuck, conn := dial(t, l), dial(t, l)
	late := time.NewTimer(2 * time.Second)
	<-late.C
	n, err := io.Copy(io.Discard, conn)
	require.NoError(t, err, "it takes it in time")
	assert.EqualValues(t, len(data), n)
	eventually(t, func() bool { return l.Stats().Active == 0 }, "the other one to be cut")
	_, err = io.Copy(io.Discard, stuck)
	assert.ErrorIs(t, err, syscall.ECONNRESET)
	assert.EqualValues(t, 2, l.Stats().Aged)
}

func testDrain(t *testing.T, new New) {
	ended := make(chan error, 1)
	leaving, staying := backend(t, echoThen(ended)), backend(t, echo)
	b := balance(leaving, staying)
	_, l := start(t, new, relay.Config{}, b)
	first, second := dial(t, l), dial(t, l)
	eventually(t, func() bool { return l.Stats().Connected == 2 }, "the connections")
	b.mu.Lock()
	both := b.active[leaving] == 1 && b.active[staying] == 1
	b.mu.Unlock()
	require.True(t, both)
	roundTrip(t, first, "before")
	roundTrip(t, second, "before")
	l.Retain([]netip.AddrPort{leaving, staying}, 0)
	l.Retain(nil, -1)
	roundTrip(t, first, "nobody has left")
	roundTrip(t, second, "nobody has left")
	l.Retain([]netip.AddrPort{staying}, 0)
	require.NoError(t, <-ended)
	eventually(t, func() bool { return l.Stats().Active == 1 }, "the connection to end")
	gone := 0
	for _, conn := range []*net.TCPConn{first, second} {
		if b := make([]byte, 1); !peerHasClosed(conn, b) {
			roundTrip(t, conn, "goes on")
		} else {
			gone++
		}
	}
	assert.Equal(t, 1, gone)
	assert.EqualValues(t, 1, l.Stats().Drained)

	b.mu.Lock()
	b.backends = []netip.AddrPort{leaving} // picked in spite of that, before the news
	b.mu.Unlock()
	assert.ErrorIs(t, endSeen(l), io.EOF)
}

// peerHasClosed reads what can be read at once.
func peerHasClosed(c *net.TCPConn, b []byte) bool {
	c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	_, err := c.Read(b)
	c.SetReadDeadline(time.Now().Add(patience))
	return err == io.EOF
}

func testDrainAndReturn(t *testing.T, new New) {
	t.Parallel()
	ended := make(chan error, 2)
	leaving := backend(t, echoThen(ended))
	_, l := start(t, new, relay.Config{}, balance(leaving))
	conn := dial(t, l)
	roundTrip(t, conn, "before")
	l.Retain(nil, 500*time.Millisecond)
	roundTrip(t, conn, "it has some time")
	l.Retain([]netip.AddrPort{leaving}, 500*time.Millisecond)
	over := time.NewTimer(time.Second)
	<-over.C
	roundTrip(t, conn, "it is back")
	l.Retain(nil, 500*time.Millisecond)
	expectEnd(t, conn, ended)
}
