package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
)

// faultyBackend is a pod that serves exchanges over TCP port 8080 and UDP port 8053 of both families, and that can be
// broken in many ways.
type faultyBackend struct {
	t        *testing.T
	name     string
	host     *lab.Host
	registry *registry
	ledger   *ledger
	listener net.Listener
	udp      net.PacketConn // nil while closed
	mode     backendMode
	endings  []func()   // of what the present fault excuses
	mu       sync.Mutex // guards what follows
	live     map[*patient]bool
}

// backendMode is how connections are treated.
type backendMode struct {
	refusal atomic.Pointer[string] // faultReset or faultHangUp, to what is accepted; nil: served
	slow    atomic.Bool
	gate    sync.RWMutex // held for writing while nothing is accepted
}

// pass waits while nothing is accepted.
func (m *backendMode) pass() {
	m.gate.RLock()
	defer m.gate.RUnlock()
}

// shortQueue is the longest accept queue in pods: it has to be full soon if it is to be full at all.
const shortQueue = "4"

func addFaultyBackend(t *testing.T, node *lab.Host, n int, r *registry, l *ledger) *faultyBackend {
	t.Helper()
	b := &faultyBackend{t: t, name: podName(n - 1), host: addHost(t, node, podName(n-1), n), registry: r, ledger: l, live: map[*patient]bool{}}
	require.NoError(t, b.host.Do(func() (err error) {
		if err := os.WriteFile("/proc/sys/net/core/somaxconn", []byte(shortQueue), 0o644); err != nil {
			return err
		}
		b.listener, err = net.Listen("tcp", ":8080")
		return err
	}))
	go b.acceptLoop()
	b.openUDP()
	return b
}

// acceptLoop runs until the process ends.
func (b *faultyBackend) acceptLoop() {
	for {
		b.mode.pass()
		conn, err := b.listener.Accept()
		if err != nil {
			b.ledger.violate("backend %s cannot accept: %v", b.name, err)
			return
		}
		p := &patient{Conn: conn}
		if fault := b.mode.refusal.Load(); fault != nil {
			b.ledger.feel(*fault, 1)
			if *fault == faultReset {
				p.reset()
			} else {
				p.Close()
			}
			continue
		}
		b.mu.Lock()
		b.live[p] = true
		b.mu.Unlock()
		go b.serve(p)
	}
}

// abort resets all connections.
func (b *faultyBackend) abort() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for p := range b.live {
		p.reset()
	}
}

func (b *faultyBackend) serve(p *patient) {
	defer func() {
		b.mu.Lock()
		delete(b.live, p)
		b.mu.Unlock()
		p.Close()
	}()
	if b.mode.slow.Load() {
		b.ledger.feel(faultSlow, 1)
		p.slow.Store(true)
	}
	if _, err := io.WriteString(p, b.name+"\n"); err != nil {
		return
	}
	in := bufio.NewReader(p)
	header, err := in.ReadString('\n')
	if err != nil {
		return // whether it may be so is the client's to tell
	}
	var id uint64
	x := (*exchange)(nil)
	if _, err := fmt.Sscan(header, &id); err == nil {
		x = b.registry.find(id)
	}
	if x == nil {
		b.ledger.violate("%s received a header that nobody has sent: %q", b.name, header)
		return
	}
	again := true
	x.started.Do(func() { again = false })
	if again {
		b.ledger.violate("%s: a second connection brings the same bytes, to %s", x.purpose(), b.name)
		return
	}
	p.x = x
	err = b.exchange(p, in, x)
	if errors.Is(err, errCorrupt) {
		b.ledger.violate("%s: at backend %s: %v", x.purpose(), b.name, err)
	}
	if x.leaves && cutShort(err) {
		// What it knows of itself is its client's alone to read.
		b.ledger.judge(&exchange{id: x.id, from: x.from, address: x.address, shape: x.shape, began: x.began, phase: phaseLive, backend: b.name},
			fmt.Errorf("a client has reset it, and the backend: %w", err))
	}
	x.verified <- err
}

func (b *faultyBackend) exchange(p *patient, in *bufio.Reader, x *exchange) error {
	answer := func() error {
		if err := send(p, x.id, true, x.down); err != nil {
			return err
		}
		return p.closeWrite()
	}
	switch x.shape {
	case shapeRequest:
		if err := receive(in, x.id, false, x.up); err != nil {
			return err
		}
		return answer()
	case shapeResponse:
		if err := answer(); err != nil {
			return err
		}
		return receive(in, x.id, false, x.up)
	case shapeDuplex:
		sent := make(chan error, 1)
		go func() { sent <- answer() }()
		return errors.Join(receive(in, x.id, false, x.up), <-sent)
	default:
		for {
			line, err := in.ReadString('\n')
			switch {
			case err == io.EOF && line == "":
				return nil
			case err != nil:
				return err
			}
			if _, err := io.WriteString(p, strings.ToUpper(line)); err != nil {
				return err
			}
		}
	}
}

// openUDP answers datagrams with the name and what they were.
func (b *faultyBackend) openUDP() {
	b.t.Helper()
	require.NoError(b.t, b.host.Do(func() (err error) { b.udp, err = net.ListenPacket("udp", ":8053"); return err }))
	go func(conn net.PacketConn) {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				conn.WriteTo(append([]byte(b.name+" "), buf[:n]...), from)
			}
		}
	}(b.udp)
}

func (b *faultyBackend) closeUDP() { b.udp.Close() }

// rules adds or removes (-I, -D) rules in the pod's own network.
func (b *faultyBackend) rules(families []string, operation, chain string, rule ...string) {
	b.t.Helper()
	for _, family := range families {
		program := map[string]string{"4": "iptables", "6": "ip6tables"}[family]
		_, err := b.host.Output(program, append([]string{"-w", operation, chain}, rule...)...)
		require.NoError(b.t, err)
	}
}
