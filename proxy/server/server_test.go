package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })

// start runs s and returns the address it was bound to.
func start(t *testing.T, s *Server) (addr string, stop func() error) {
	t.Helper()
	bound := make(chan string, 1)
	listen := s.listen
	s.listen = func(ctx context.Context, network, addr string) (net.Listener, error) {
		l, err := listen(ctx, network, addr)
		if err == nil {
			bound <- l.Addr().String()
		}
		return l, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { assert.NoError(t, stop()) })
	return <-bound, stop
}

func TestServesUntilTheEnd(t *testing.T) {
	t.Parallel()
	log, _ := logtest.NewNullLogger()
	addr, stop := start(t, New(Config{Name: "test", Addr: "127.0.0.1:0", Handler: hello, Log: logrus.NewEntry(log)}))
	resp, err := http.Get("http://" + addr)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, "hello", string(body))

	kept, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer kept.Close()
	_, err = io.WriteString(kept, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	r := bufio.NewReader(kept)
	_, err = http.ReadResponse(r, nil)
	require.NoError(t, err)
	require.NoError(t, stop())
	require.NoError(t, kept.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = io.ReadAll(r)
	assert.NoError(t, err, "its connections end with it")
	_, err = net.Dial("tcp", addr)
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestAllAddressesAreThoseOfBothFamilies(t *testing.T) {
	t.Parallel()
	log, _ := logtest.NewNullLogger()
	addr, _ := start(t, New(Config{Name: "test", Addr: "0.0.0.0:0", Handler: hello, Log: logrus.NewEntry(log)}))
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := net.Dial("tcp", net.JoinHostPort(host, port))
		require.NoError(t, err)
		conn.Close()
	}
}

func TestNoAddressNoServer(t *testing.T) {
	t.Parallel()
	log, _ := logtest.NewNullLogger()
	assert.NoError(t, New(Config{Handler: hello, HardFail: true, Log: logrus.NewEntry(log)}).Run(t.Context()))
}

func TestHardFail(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	log, _ := logtest.NewNullLogger()
	err = New(Config{Name: "metrics", Addr: l.Addr().String(), Handler: hello, HardFail: true, Log: logrus.NewEntry(log)}).Run(t.Context())
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	assert.ErrorContains(t, err, "metrics")
	assert.ErrorContains(t, err, l.Addr().String())
}

// quiet is a listener that nobody connects to: real sockets do not go with synctest.
type quiet struct {
	closed chan struct{}
	err    error
	close  func()
}

func newQuiet(err error) *quiet {
	q := &quiet{closed: make(chan struct{}), err: err}
	q.close = sync.OnceFunc(func() { close(q.closed) })
	return q
}

func (q *quiet) Accept() (net.Conn, error) { <-q.closed; return nil, q.err }
func (q *quiet) Close() error              { q.close(); return nil }
func (q *quiet) Addr() net.Addr            { return &net.TCPAddr{} }

func TestBindsAgainEveryFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, logged := logtest.NewNullLogger()
		s := New(Config{Name: "test", Addr: "198.18.0.1:1", Handler: hello, Log: logrus.NewEntry(log)})
		broken := newQuiet(errors.New("the listener broke"))
		var attempts []time.Duration
		began := time.Now()
		s.listen = func(context.Context, string, string) (net.Listener, error) {
			attempts = append(attempts, time.Since(began))
			switch len(attempts) {
			case 4:
				return broken, nil
			case 5:
				return newQuiet(net.ErrClosed), nil
			}
			return nil, syscall.EADDRINUSE
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(time.Hour) // of fake time
		broken.Close()
		time.Sleep(time.Hour)
		cancel()
		assert.NoError(t, <-done)
		assert.Equal(t, []time.Duration{0, 5 * time.Second, 10 * time.Second, 15 * time.Second, time.Hour + 5*time.Second}, attempts)
		var warnings []string
		for _, e := range logged.AllEntries() {
			if e.Level == logrus.WarnLevel {
				warnings = append(warnings, e.Data[logrus.ErrorKey].(error).Error())
			}
		}
		assert.Equal(t, []string{syscall.EADDRINUSE.Error(), "the listener broke"}, warnings, "once for each reason")
	})
}

func TestEndsWhileItCannotBind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _ := logtest.NewNullLogger()
		s := New(Config{Name: "test", Addr: "198.18.0.1:1", Handler: hello, Log: logrus.NewEntry(log)})
		s.listen = func(context.Context, string, string) (net.Listener, error) { return nil, syscall.EADDRNOTAVAIL }
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		began := time.Now()
		assert.NoError(t, s.Run(ctx))
		assert.Equal(t, 7*time.Second, time.Since(began))
	})
}

// pipes is a listener of connections that are made in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func TestSlowClientsAreCutOff(t *testing.T) {
	for name, client := range map[string]struct {
		sent  string
		after time.Duration
	}{
		"nothing":            {"", headerTimeout},
		"half a header":      {"GET / HTTP/1.1\r\nHost:", headerTimeout},
		"no second request":  {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", idleTimeout},
		"an unfinished body": {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx", readTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, _ := logtest.NewNullLogger()
				h := HTTP(hello, logrus.NewEntry(log))
				l := make(pipes)
				go func() { _ = h.Serve(l) }()
				near, far := net.Pipe()
				l <- far
				began := time.Now()
				go func() { _, _ = io.WriteString(near, client.sent) }()
				_, err := io.Copy(io.Discard, bufio.NewReader(near))
				assert.NoError(t, err, "an end in good order")
				assert.Equal(t, client.after, time.Since(began))
				near.Close()
				close(l)
				h.Close()
			})
		})
	}
}
