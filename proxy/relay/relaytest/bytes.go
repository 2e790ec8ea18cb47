package relaytest

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/relay"
)

// echo hides the connection's ReadFrom, so that it uses a buffer and not a pipe, whose descriptors would count.
func echo(conn *net.TCPConn) {
	io.Copy(struct{ io.Writer }{conn}, struct{ io.Reader }{conn})
	conn.CloseWrite()
}

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b)
	return b
}

// Both directions at once, more than any buffer on the way holds.
func testBytes(t *testing.T, new New) {
	_, l := start(t, new, relay.Config{}, balance(backend(t, echo)))
	conn := dial(t, l)
	sent := random(8 << 20)
	go func() { conn.Write(sent); conn.CloseWrite() }()
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Equal(t, sha256.Sum256(sent), sha256.Sum256(got))
	eventually(t, func() bool { return l.Stats().Active == 0 }, "the connection to end")
	s := l.Stats()
	assert.EqualValues(t, len(sent), s.BytesIn)
	assert.EqualValues(t, len(sent), s.BytesOut)
	assert.Zero(t, s.Resets)
}

func testServerSpeaksFirst(t *testing.T, new New) {
	_, l := start(t, new, relay.Config{}, balance(backend(t, func(c *net.TCPConn) {
		c.Write([]byte("220 ready\r\n"))
		io.Copy(io.Discard, c)
	})))
	conn := dial(t, l)
	got := make([]byte, 11)
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	assert.Equal(t, "220 ready\r\n", string(got))
}

func testIPv6(t *testing.T, new New) {
	nl, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 on this machine: " + err.Error())
	}
	serveOn(t, nl, echo)
	_, l := startOn(t, new, relay.Config{}, balance(nl.Addr().(*net.TCPAddr).AddrPort()), "::1")
	roundTrip(t, dial(t, l), "over IPv6")
}

func portOf(l Listener) string { return netPort(l.Addr().Port()) }

func roundTrip(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_, err := conn.Write([]byte(text))
	require.NoError(t, err)
	got := make([]byte, len(text))
	_, err = io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, text, string(got))
}

// Pipes for splice(2) would cost four more for as long as the connection is idle.
func testIdleCostsTwoFDs(t *testing.T, new New) {
	const n = 50
	_, l := start(t, new, relay.Config{}, balance(backend(t, echo)))
	roundTrip(t, dial(t, l), "warm")
	before := openFDs(t)
	for range n {
		roundTrip(t, dial(t, l), "idle from here")
	}
	// This process holds the client's and the backend's own sockets as well.
	assert.LessOrEqual(t, openFDs(t)-before, n*(2+2))
}

func openFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// Many short connections at once, so that descriptors are reused while others are still in use.
func testChurn(t *testing.T, new New) {
	const clients, rounds = 16, 40
	_, l := start(t, new, relay.Config{}, balance(backend(t, echo), backend(t, echo), refused(t)))
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			want := random(1 + i*977)
			for range rounds {
				conn, err := net.Dial("tcp", l.Addr().String())
				if !assert.NoError(t, err) {
					return
				}
				go func() { conn.Write(want); conn.(*net.TCPConn).CloseWrite() }()
				got, err := io.ReadAll(conn)
				conn.Close()
				if !assert.NoError(t, err) || !assert.True(t, bytes.Equal(want, got)) {
					return
				}
			}
		})
	}
	wg.Wait()
	eventually(t, func() bool { return l.Stats().Active == 0 }, "the connections to end")
	assert.EqualValues(t, clients*rounds, l.Stats().Connected)
	assert.Zero(t, l.Stats().Failed)
}
