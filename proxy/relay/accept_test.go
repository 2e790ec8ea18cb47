package relay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Each connection that comes makes an event. They take one batch together, or a burst keeps all others waiting.
func TestOneBatchPerTurn(t *testing.T) {
	s := newStream(t, time.Hour)
	const clients = 5 * acceptBatch
	s.l.socket.loop.ask(func() {
		for range clients {
			fd := s.socket()
			t.Cleanup(func() { unix.Close(fd) })
			require.NoError(t, unix.Connect(fd, sockaddr(s.l.Addr())))
		}
		for range clients {
			s.l.socket.event(unix.EPOLLIN)
		}
		assert.EqualValues(t, acceptBatch, s.l.Stats().Accepted)
		s.l.socket.loop.resume()
		assert.EqualValues(t, 2*acceptBatch, s.l.Stats().Accepted)
	})
	require.Eventually(t, func() bool { return s.l.Stats().Accepted == clients }, time.Minute, time.Millisecond)
}
