package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// How far an exchange has come.
const (
	phaseOpening = "opening" // no backend has greeted it
	phaseLive    = "live"
)

// The shapes of exchanges. In all of them both sides know what the other has to send, to the byte.
const (
	shapeRequest  = "request"  // the client sends and ends its direction, then the backend answers and ends the other
	shapeResponse = "response" // the other way round
	shapeDuplex   = "duplex"   // both at once
	shapePings    = "pings"    // lines there and back, for a long time
	shapeIdle     = "idle"     // the same, with long silences
)

var shapes = []string{shapeRequest, shapeResponse, shapeDuplex, shapePings}

// exchange is one connection's purpose, of a client of TCP, or one request of UDP.
type exchange struct {
	id       uint64
	from     string
	address  string
	shape    string
	up, down int  // bytes
	waits    bool // for the greeting before saying anything
	slow     bool // the client reads slowly
	udp      bool
	leaves   bool // the client resets it before all is said
	began    time.Time
	phase    string
	backend  string
	progress atomic.Int64 // Unix nanoseconds of the last read or write that moved something
	verified chan error   // what the backend says of what it has received
	started  sync.Once    // only one backend may get it
}

func (x *exchange) String() string {
	protocol := "tcp"
	if x.udp {
		protocol = "udp"
	}
	s := fmt.Sprintf("%s %d from %s to %s (%s, up %d, down %d, waits %t), %s at %s, began %.3f s ago",
		protocol, x.id, x.from, x.address, x.shape, x.up, x.down, x.waits, x.phase, x.backend, time.Since(x.began).Seconds())
	if p := x.progress.Load(); p != 0 {
		s += fmt.Sprintf(", last moved %.3f s ago", time.Since(time.Unix(0, p)).Seconds())
	}
	return s
}

// purpose is what never changes of an exchange.
func (x *exchange) purpose() string {
	return fmt.Sprintf("tcp %d from %s to %s (%s, up %d, down %d, waits %t, leaves %t)", x.id, x.from, x.address, x.shape, x.up, x.down, x.waits, x.leaves)
}

// registry is where a backend finds the exchange that a connection belongs to.
type registry struct {
	next atomic.Uint64
	all  sync.Map // id -> *exchange
}

func (r *registry) register(x *exchange) {
	x.id, x.began, x.phase, x.verified = r.next.Add(1), time.Now(), phaseOpening, make(chan error, 1)
	r.all.Store(x.id, x)
}

func (r *registry) find(id uint64) *exchange {
	x, _ := r.all.Load(id)
	found, _ := x.(*exchange)
	return found
}

// errCorrupt is worse than any failed connection: bytes that nobody has sent.
var errCorrupt = errors.New("corrupt")

// errCutShort is an end that looks regular and is not. Only a dead process of redial may leave it, by its kernel.
var errCutShort = errors.New("ended by a FIN")

// cutShort reports that an exchange has ended so. Whichever of reading and writing comes first is told of a reset; the other
// then finds what looks like a FIN.
func cutShort(err error) bool {
	return errors.Is(err, errCutShort) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE)
}

// payload is the stream of an exchange in one direction. It is a function of both.
func payload(id uint64, down bool) io.Reader {
	var seed [32]byte
	binary.BigEndian.PutUint64(seed[:], id)
	if down {
		seed[31] = 1
	}
	return rand.NewChaCha8(seed)
}

// patient is a connection of which each read and write may take a while, and not more.
type patient struct {
	net.Conn
	x    *exchange // nil: not known
	slow atomic.Bool
}

// faultPatience is what TCP may need after a silence of some seconds: the interval between two retransmissions doubles.
const faultPatience = 30 * time.Second

func (p *patient) Read(b []byte) (int, error) {
	if p.slow.Load() {
		b = b[:min(len(b), 4<<10)]
		pause(time.Millisecond)
	}
	p.Conn.SetReadDeadline(time.Now().Add(faultPatience))
	n, err := p.Conn.Read(b)
	p.moved(n)
	return n, err
}

func (p *patient) Write(b []byte) (int, error) {
	p.Conn.SetWriteDeadline(time.Now().Add(faultPatience))
	n, err := p.Conn.Write(b)
	p.moved(n)
	return n, err
}

func (p *patient) moved(n int) {
	if p.x != nil && n > 0 {
		p.x.progress.Store(time.Now().UnixNano())
	}
}

func (p *patient) closeWrite() error { return p.Conn.(*net.TCPConn).CloseWrite() }

// reset ends the connection by a RST.
func (p *patient) reset() {
	p.Conn.(*net.TCPConn).SetLinger(0)
	p.Conn.Close()
}

// pause is the pace of slow readers and steady clients, not a wait for something.
func pause(d time.Duration) { <-time.After(d) }

// send writes a payload.
func send(to *patient, id uint64, down bool, size int) error {
	_, err := io.CopyN(struct{ io.Writer }{to}, payload(id, down), int64(size))
	return err
}

// receive reads a payload and then the end of the stream: nothing lost, nothing added, nothing changed.
func receive(from *bufio.Reader, id uint64, down bool, size int) error {
	expected := payload(id, down)
	got, want := make([]byte, 32<<10), make([]byte, 32<<10)
	for total := 0; ; {
		n, err := from.Read(got)
		io.ReadFull(expected, want[:n])
		if !bytes.Equal(got[:n], want[:n]) {
			return fmt.Errorf("%w: other bytes than were sent, within %d after %d of %d", errCorrupt, n, total, size)
		}
		if total += n; total > size {
			return fmt.Errorf("%w: more than the %d bytes that were sent", errCorrupt, size)
		}
		switch {
		case err == io.EOF && total == size:
			return nil
		case err == io.EOF:
			return fmt.Errorf("%w after %d of %d bytes", errCutShort, total, size)
		case err != nil:
			return fmt.Errorf("after %d of %d bytes: %w", total, size, err)
		}
	}
}
