package relay

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A listener that is closed while it waits for its turn to go on accepting leaves the descriptor's number alone, which
// somebody else may have by then.
func TestClosedListenerAcceptsNothing(t *testing.T) {
	s := newStream(t, time.Hour)
	number := s.l.socket.fd
	require.NoError(t, s.l.Close())
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer other.Close()
	raw, err := other.(*net.TCPListener).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		if int(fd) != number { // otherwise it has got the number by itself
			err = unix.Dup3(int(fd), number, unix.O_CLOEXEC)
			t.Cleanup(func() { unix.Close(number) })
		}
	}))
	require.NoError(t, err)
	client, err := net.Dial("tcp", other.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	s.l.socket.loop.ask(s.l.socket.resume)
	s.l.socket.loop.ask(s.l.socket.alarm)
	assert.Zero(t, s.l.Stats().Accepted)
}
