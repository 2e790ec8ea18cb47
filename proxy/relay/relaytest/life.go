package relaytest

import (
	"io"
	"net"
	"net/netip"
	"sync"
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
	engine, l := start(t, new, relay.Config{}, balance(backend(t, echoThen(ended))))
	old := dial(t, l)
	roundTrip(t, old, "begun before")
	l.Configure(relay.Settings{IdleTimeout: time.Hour})
	conn := dial(t, l)
	roundTrip(t, conn, "and then nothing")
	engine.Advance(59 * time.Minute)
	assert.Zero(t, l.Stats().Idle)
	engine.Advance(time.Minute)
	expectEnd(t, conn, ended)
	roundTrip(t, old, "has its own settings")
	assert.EqualValues(t, 1, l.Stats().Idle)
	assert.Zero(t, l.Stats().Resets)

	conn = dial(t, l)
	eventually(t, func() bool { return l.Stats().Connected == 3 }, "the connection")
	engine.Advance(time.Hour)
	expectEnd(t, conn, ended) // not a byte ever
}

// Either direction is enough.
func testIdleTimeoutRenewed(t *testing.T, new New) {
	accepted, over := make(chan *net.TCPConn, 1), make(chan struct{})
	engine, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) {
		accepted <- c
		<-over
	})))
	defer close(over)
	l.Configure(relay.Settings{IdleTimeout: time.Hour})
	from := dial(t, l)
	to := <-accepted
	for range 6 {
		_, err := from.Write([]byte("x"))
		require.NoError(t, err)
		_, err = io.ReadFull(to, make([]byte, 1))
		require.NoError(t, err)
		from, to = to, from
		engine.Advance(40 * time.Minute)
	}
	assert.Zero(t, l.Stats().Idle)
}

func testMaxConnectionAge(t *testing.T, new New) {
	ended := make(chan error, 1)
	engine, l := start(t, new, relay.Config{}, balance(backend(t, echoThen(ended))))
	l.Configure(relay.Settings{MaxConnectionAge: time.Hour})
	conn := dial(t, l)
	roundTrip(t, conn, "young")
	engine.Advance(53 * time.Minute) // more or less is up to a tenth
	roundTrip(t, conn, "not old yet")
	engine.Advance(13 * time.Minute)
	expectEnd(t, conn, ended)
	assert.EqualValues(t, 1, l.Stats().Aged)
}

// One that hardly rests ends between an answer and the next question.
func testMaxConnectionAgeBusy(t *testing.T, new New) {
	answer := make(chan struct{})
	engine, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) {
		for b := make([]byte, 1); ; {
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			<-answer
			c.Write(b)
		}
	})))
	release := sync.OnceFunc(func() { close(answer) })
	defer release()
	l.Configure(relay.Settings{MaxConnectionAge: time.Hour})
	conn := dial(t, l)
	conn.Write([]byte("x"))
	eventually(t, func() bool { return l.Stats().BytesIn == 1 }, "the question")
	engine.Advance(66 * time.Minute)
	assert.Zero(t, l.Stats().Aged, "there is no answer yet")
	release()
	_, err := conn.Read(make([]byte, 1))
	require.NoError(t, err)
	rounds := 0
	for ; err == nil; rounds++ {
		_, err = conn.Write([]byte("x"))
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		engine.Advance(10 * time.Millisecond)
	}
	assert.Less(t, rounds, 400, "of 10 ms: before the end of its patience")
	eventually(t, func() bool { return l.Stats().Active == 0 }, "the connection to end")
	assert.Equal(t, l.Stats().BytesIn, l.Stats().BytesOut, "nothing was left without its answer")
	assert.EqualValues(t, 1, l.Stats().Aged)
}

// What is on its way has some time, but not for ever.
func testMaxConnectionAgeStuck(t *testing.T, new New) {
	sent := make(chan int, 2)
	engine, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) {
		sent <- fill(c)
		io.Copy(io.Discard, c)
	})))
	l.Configure(relay.Settings{MaxConnectionAge: time.Hour})
	stuck := dial(t, l)
	<-sent
	conn := dial(t, l)
	size := <-sent
	engine.Advance(66 * time.Minute)
	n, err := io.Copy(io.Discard, conn)
	require.NoError(t, err, "it takes it in time")
	assert.EqualValues(t, size, n)
	engine.Advance(time.Minute)
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
	first := dial(t, l)
	roundTrip(t, first, "before")
	second := dial(t, l)
	roundTrip(t, second, "before")
	require.Equal(t, []netip.AddrPort{leaving, staying}, b.picked())
	l.Retain([]netip.AddrPort{leaving, staying}, 0)
	l.Retain(nil, -1)
	roundTrip(t, first, "nobody has left")
	roundTrip(t, second, "nobody has left")
	l.Retain([]netip.AddrPort{staying}, 0)
	expectEnd(t, first, ended)
	roundTrip(t, second, "goes on")
	assert.EqualValues(t, 1, l.Stats().Drained)

	b.mu.Lock()
	b.backends = []netip.AddrPort{leaving} // picked in spite of that, before the news
	b.mu.Unlock()
	assert.ErrorIs(t, endSeen(l), io.EOF)
}

func testDrainAndReturn(t *testing.T, new New) {
	ended := make(chan error, 2)
	leaving := backend(t, echoThen(ended))
	engine, l := start(t, new, relay.Config{}, balance(leaving))
	conn := dial(t, l)
	roundTrip(t, conn, "before")
	l.Retain(nil, time.Hour)
	engine.Advance(59 * time.Minute)
	roundTrip(t, conn, "it has some time")
	l.Retain([]netip.AddrPort{leaving}, time.Hour)
	engine.Advance(2 * time.Hour)
	roundTrip(t, conn, "it is back")
	l.Retain(nil, time.Hour)
	engine.Advance(time.Hour)
	expectEnd(t, conn, ended)
}

// A connection does not need its listener for that.
func testDrainAfterClose(t *testing.T, new New) {
	ended := make(chan error, 1)
	engine, l := start(t, new, relay.Config{}, balance(backend(t, echoThen(ended))))
	conn := dial(t, l)
	roundTrip(t, conn, "before")
	require.NoError(t, l.Close())
	l.Retain(nil, time.Hour)
	engine.Advance(59 * time.Minute)
	roundTrip(t, conn, "it has some time")
	engine.Advance(time.Minute)
	expectEnd(t, conn, ended)
	assert.EqualValues(t, 1, l.Stats().Drained)
}

// The time counts from when the backend left, whatever it was then.
func testDrainTimeChanges(t *testing.T, new New) {
	ended := make(chan error, 1)
	engine, l := start(t, new, relay.Config{}, balance(backend(t, echoThen(ended))))
	for _, then := range []time.Duration{40 * time.Minute, 2 * time.Hour} {
		conn := dial(t, l)
		l.Retain(nil, -1)
		roundTrip(t, conn, "before")
		l.Retain(nil, time.Hour)
		roundTrip(t, conn, "the loop has heard of that, or it would hear of both at once")
		engine.Advance(30 * time.Minute)
		l.Retain(nil, then)
		roundTrip(t, conn, "it has some time")
		engine.Advance(then - 31*time.Minute)
		roundTrip(t, conn, "and some more")
		engine.Advance(time.Minute)
		expectEnd(t, conn, ended)
	}
}
