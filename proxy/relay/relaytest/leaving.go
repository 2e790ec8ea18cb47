package relaytest

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/relay"
)

// Connections of a listener that has been closed are counted to their end.
func testCloseKeepsCounting(t *testing.T, new New) {
	engine, l := start(t, new, relay.Config{}, balance(backend(t, echo)))
	conn := dial(t, l)
	roundTrip(t, conn, "before")
	require.NoError(t, l.Close())
	roundTrip(t, conn, "after")
	s := engine.Totals().TCP
	assert.EqualValues(t, 1, s.Active)
	assert.EqualValues(t, len("before")+len("after"), s.BytesOut)
	conn.Close()
	eventually(t, func() bool { return engine.Totals().TCP.Active == 0 }, "its end to be counted")
	s = engine.Totals().TCP
	assert.EqualValues(t, 1, s.Connected)
	assert.EqualValues(t, len("before")+len("after"), s.BytesOut)
}

func testCloseIdle(t *testing.T, new New) {
	engine, l := start(t, new, relay.Config{}, balance(backend(t, echo)))
	live := dial(t, l)
	roundTrip(t, live, "before")
	assert.False(t, engine.CloseIdle(), "a connection is live")
	later := dial(t, l)
	roundTrip(t, later, "new connections are accepted")
	require.NoError(t, l.Close())
	assert.False(t, engine.CloseIdle(), "connections of a listener that closed earlier are not forgotten")
	roundTrip(t, live, "after")
	live.Close()
	later.Close()
	eventually(t, engine.CloseIdle, "the connections' end")
}

// A client comes and goes, at any moment: it is not accepted after the one in which nobody was there.
func testCloseIdleBesideClients(t *testing.T, new New) {
	for range 20 {
		engine, l := start(t, new, relay.Config{}, balance(backend(t, echo)))
		var client sync.WaitGroup
		client.Go(func() {
			for {
				conn, err := net.DialTimeout("tcp", l.Addr().String(), patience)
				if err != nil {
					return
				}
				conn.SetDeadline(time.Now().Add(patience))
				io.WriteString(conn, "ping")
				io.ReadFull(conn, make([]byte, 4)) // or it is in the queue when that is closed
				conn.Close()
				for l.Stats().Active > 0 {
					<-time.After(100 * time.Microsecond)
				}
				<-time.After(time.Duration(rand.IntN(int(3 * time.Millisecond))))
			}
		})
		eventually(t, engine.CloseIdle, "a moment without connections")
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		assert.Zero(t, engine.Shutdown(ctx), "connections cut")
		client.Wait()
	}
}
