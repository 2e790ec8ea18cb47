package relaytest

import (
	"io"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy/relay"
)

// A signal may interrupt splice(2) between two pages (splice_to_socket), so that it moves less than the socket has room
// for, and no event tells of the rest. The Go runtime signals its threads whenever a goroutine runs for long.
func testSignals(t *testing.T, new New) {
	const size = 128 << 20
	_, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) {
		n, _ := io.Copy(io.Discard, struct{ io.Reader }{c})
		c.Write([]byte(strconv.FormatInt(n, 10)))
		c.CloseWrite()
	})))
	signalled := make(chan int)
	done := make(chan struct{})
	go func() { signalled <- signalThreads(done) }()
	conn := dial(t, l)
	piece := make([]byte, 1<<10) // each is a page of the pipe's
	for range size / len(piece) {
		_, err := conn.Write(piece)
		require.NoError(t, err)
	}
	require.NoError(t, conn.CloseWrite())
	got, err := io.ReadAll(conn)
	close(done)
	require.NoError(t, err)
	assert.Equal(t, strconv.Itoa(size), string(got))
	t.Logf("%d signals", <-signalled)
}

// signalThreads sends each thread of the process the runtime's own signal, again and again.
func signalThreads(done chan struct{}) (n int) {
	for {
		threads, _ := os.ReadDir("/proc/self/task")
		for range 1000 {
			for _, thread := range threads {
				if id, err := strconv.Atoi(thread.Name()); err == nil && unix.Tgkill(os.Getpid(), id, unix.SIGURG) == nil {
					n++
				}
			}
			select {
			case <-done:
				return n
			default:
			}
		}
	}
}
