package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
)

// addHost attaches host number n, with one address of each family.
func addHost(t *testing.T, node *lab.Host, name string, n int) *lab.Host {
	t.Helper()
	h, err := node.AddHost(name, ip4(n)+"/24", ip6(n)+"/64")
	require.NoError(t, err)
	return h
}

func ip4(n int) string { return fmt.Sprintf("198.18.%d.2", n) }
func ip6(n int) string { return fmt.Sprintf("2001:db8:%d::2", n) }

// backend is a server that says its name, and then what it is told.
type backend struct {
	t        *testing.T
	name     string
	host     *lab.Host
	address  string
	accepted atomic.Int64
	listener net.Listener
}

// addBackend attaches pod number n and serves on port 8080 of both families. name is also the pod's.
func addBackend(t *testing.T, node *lab.Host, name string, n int) *backend {
	t.Helper()
	return serveOn(t, addHost(t, node, name, n), name, ":8080")
}

// serveOn starts a backend on a host.
func serveOn(t *testing.T, host *lab.Host, name, address string) *backend {
	t.Helper()
	b := &backend{t: t, name: name, host: host, address: address}
	b.serve()
	return b
}

func (b *backend) serve() {
	b.t.Helper()
	require.NoError(b.t, b.host.Do(func() (err error) { b.listener, err = net.Listen("tcp", b.address); return err }))
	go b.acceptLoop(b.listener)
}

// refuse closes the port. Connections that are live go on.
func (b *backend) refuse() { b.listener.Close() }

func (b *backend) acceptLoop(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		b.accepted.Add(1)
		go func() {
			defer conn.Close()
			if _, err := io.WriteString(conn, b.name+"\n"); err == nil {
				io.Copy(conn, conn)
			}
		}()
	}
}

// silence makes the backend's host drop what comes in.
func (b *backend) silence() {
	b.t.Helper()
	for _, program := range []string{"iptables", "ip6tables"} {
		_, err := b.host.Output(program, "-w", "-I", "INPUT", "-p", "tcp", "--dport", "8080", "-j", "DROP")
		require.NoError(b.t, err)
	}
}

// clientPatience bounds one exchange. A connection that takes longer has failed.
const clientPatience = 30 * time.Second

// call is a client's connection to a backend.
type call struct {
	net.Conn
	backend string // which one answered
	lines   *bufio.Reader
}

// dial connects from a host and reads which backend it got.
func dial(from *lab.Host, address string) (*call, error) {
	c, err := connect(from, address)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(clientPatience))
	line, err := c.lines.ReadString('\n')
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("waiting for the backend's name: %w", err)
	}
	c.SetDeadline(time.Time{})
	c.backend = strings.TrimSuffix(line, "\n")
	return c, nil
}

// connect connects and reads nothing.
func connect(from *lab.Host, address string) (*call, error) {
	var conn net.Conn
	err := from.Do(func() (err error) {
		d := net.Dialer{Timeout: clientPatience, FallbackDelay: -1}
		// Not by name and not in a goroutine of the resolver: the socket has to be made on this thread.
		conn, err = d.DialTCP(context.Background(), "tcp", netip.AddrPort{}, netip.MustParseAddrPort(address))
		return err
	})
	if err != nil {
		return nil, err
	}
	return &call{Conn: conn, lines: bufio.NewReader(conn)}, nil
}

// echo tells the backend something and expects to hear it back.
func (c *call) echo(line string) error {
	c.SetDeadline(time.Now().Add(clientPatience))
	defer c.SetDeadline(time.Time{})
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return err
	}
	got, err := c.lines.ReadString('\n')
	if err == nil && got != line+"\n" {
		err = fmt.Errorf("told the backend %q and heard %q", line, got)
	}
	return err
}

// ask is one whole exchange over a connection of its own.
func ask(from *lab.Host, address string) (backend string, err error) {
	c, err := dial(from, address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return c.backend, c.echo("hello")
}

// mustDial is dial on the test's own goroutine.
func mustDial(t *testing.T, from *lab.Host, address string) *call {
	t.Helper()
	c, err := dial(from, address)
	require.NoError(t, err, "from %s to %s", from.Name, address)
	t.Cleanup(func() { c.Close() })
	return c
}

// assertAnswers expects one of the backends to answer.
func assertAnswers(t *testing.T, from *lab.Host, address string, backends ...string) {
	t.Helper()
	name, err := ask(from, address)
	if assert.NoError(t, err, "from %s to %s", from.Name, address) {
		assert.Contains(t, backends, name, "from %s to %s", from.Name, address)
	}
}

// assertRefused expects a refusal, which is an answer: not silence, and not a connection that is closed again.
func assertRefused(t *testing.T, from *lab.Host, address string) {
	t.Helper()
	c, err := connect(from, address)
	if err == nil {
		c.Close()
	}
	assert.ErrorIs(t, err, syscall.ECONNREFUSED, "from %s to %s", from.Name, address)
}

// awaitAnswer waits until backend answers, for facts that no status tells.
func awaitAnswer(t *testing.T, from *lab.Host, address, backend string) {
	t.Helper()
	var name string
	var err error
	if !eventually(func() bool { name, err = ask(from, address); return err == nil && name == backend }) {
		require.FailNow(t, "no answer in time", "from %s to %s: %q, %v", from.Name, address, name, err)
	}
}

// crowd has several clients at once make connections, n in all, and returns how many each backend answered and what
// went wrong.
func crowd(n, atOnce int, from *lab.Host, address string) (answers map[string]int, failures []error) {
	var mu sync.Mutex
	var running sync.WaitGroup
	left := atomic.Int64{}
	left.Store(int64(n))
	answers = map[string]int{}
	for range atOnce {
		running.Go(func() {
			for left.Add(-1) >= 0 {
				name, err := ask(from, address)
				mu.Lock()
				if err != nil {
					failures = append(failures, err)
				} else {
					answers[name]++
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	return answers, failures
}

// prober asks again and again, as a client that would notice any disturbance.
type prober struct {
	end     chan struct{}
	ended   chan struct{}
	asked   atomic.Int64
	mu      sync.Mutex
	failed  []failure
	address string
}

// failure is a connection that did not work out.
type failure struct {
	began, ended time.Time
	err          error
}

func (f failure) String() string {
	return fmt.Sprintf("%s +%s: %v", f.began.Format(time.StampMilli), f.ended.Sub(f.began).Round(time.Millisecond), f.err)
}

func startProber(from *lab.Host, address string) *prober {
	p := &prober{end: make(chan struct{}), ended: make(chan struct{}), address: address}
	go p.run(from)
	return p
}

func (p *prober) run(from *lab.Host) {
	defer close(p.ended)
	tick := time.NewTicker(5 * time.Millisecond) // 200 connections a second at most: a disturbance, not a load
	defer tick.Stop()
	for {
		began := time.Now()
		if _, err := ask(from, p.address); err != nil {
			p.mu.Lock()
			p.failed = append(p.failed, failure{began, time.Now(), err})
			p.mu.Unlock()
		}
		p.asked.Add(1)
		select {
		case <-p.end:
			return
		case <-tick.C:
		}
	}
}

// awaitMore waits until n more connections were tried.
func (p *prober) awaitMore(t *testing.T, n int64) {
	t.Helper()
	goal := p.asked.Load() + n
	require.True(t, eventually(func() bool { return p.asked.Load() >= goal }), "%d connections", n)
}

// failures ends the prober and returns what has failed.
func (p *prober) failures() []failure {
	close(p.end)
	<-p.ended
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// stop ends the prober and expects that nothing has failed.
func (p *prober) stop(t *testing.T) {
	t.Helper()
	assert.Empty(t, p.failures(), "of %d connections to %s", p.asked.Load(), p.address)
	assert.NotZero(t, p.asked.Load())
}
