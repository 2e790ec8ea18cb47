package relay

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A loop that may give everything away does, with established connections too, and what they count is kept together.
func TestConnectionsMove(t *testing.T) {
	s := newStream(t, 0)
	if len(s.relay.tcpLoops) < 2 {
		t.Skip("needs two loops")
	}
	client, server := s.connect(sockaddr(s.l.Addr()))
	defer unix.Close(client)
	defer unix.Close(server)
	buf := make([]byte, 64)
	sent := uint64(0)
	require.Eventually(t, func() bool {
		unix.Write(client, buf)
		unix.Read(server, buf)
		sent += 64
		loops := 0
		for i := range s.l.stats {
			if c := s.l.stats[i].Load(); c != nil && c.bytesIn.Load() > 0 {
				loops++
			}
		}
		return loops == len(s.l.stats)
	}, time.Minute, time.Millisecond)
	assert.Equal(t, sent, s.l.Stats().BytesIn)
	assert.EqualValues(t, 1, s.l.Stats().Active)
}

// Being kept from the processor is not being overloaded, and neither is work with rests in between.
func TestOverloaded(t *testing.T) {
	const period = 10 * time.Millisecond
	runtime.LockOSThread() // whose time it is
	defer runtime.UnlockOSThread()
	lp := &tcpLoop{relay: &Relay{restless: period}}
	busy := func(d, cpu time.Duration) bool {
		lp.now += d
		lp.load.cpu = threadTime() - cpu
		return lp.overloaded()
	}
	lp.now = time.Second
	assert.False(t, busy(0, period), "nothing is known of the time before")
	assert.False(t, busy(period/2, period), "not for long")
	assert.False(t, busy(period, period/2), "it got half a processor")
	assert.True(t, busy(period, period), "a whole one")
	assert.True(t, busy(period/10, 0), "until the next is over")
	assert.False(t, busy(period, period/2), "it has rested")
	assert.True(t, busy(period, period), "a whole one again")
	assert.False(t, busy(10*period, 10*period), "too long ago")
}
