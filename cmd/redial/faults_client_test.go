package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"time"

	"redial/proxy/intercept/lab"
)

// steady is a client of TCP that opens one connection after the other, each for another purpose.
type steady struct {
	idle     bool // its connections are, for most of the time
	rng      *rand.Rand
	places   []place
	registry *registry
	ledger   *ledger
	end      <-chan struct{}
}

// place is where a client is and the addresses it can use, of the Service's two ports.
type place struct {
	host     *lab.Host
	tcp, udp []string
}

// run goes on until end is closed, and then ends the present connection in peace.
func (c *steady) run() {
	for {
		select {
		case <-c.end:
			return
		case <-time.After(time.Duration(c.rng.IntN(20)) * time.Millisecond):
		}
		c.once()
	}
}

// draw makes up an exchange. Sizes are from 1 B to 1 MB, some up to 8, small ones as often as large ones; of the pings, which
// last, there are half as many as of each other shape.
func (c *steady) draw() (*exchange, *lab.Host) {
	at := c.places[c.rng.IntN(len(c.places))]
	most := 20.0
	if c.rng.IntN(30) == 0 {
		most = 23
	}
	size := func() int { return int(math.Pow(2, c.rng.Float64()*most)) }
	x := &exchange{
		from: at.host.Name, address: at.tcp[c.rng.IntN(len(at.tcp))],
		shape: shapes[c.rng.IntN(2*len(shapes)-1)/2], up: size(), down: size(),
		waits: c.rng.IntN(2) == 0, slow: c.rng.IntN(10) == 0 && most == 20, leaves: c.rng.IntN(15) == 0,
	}
	switch {
	case c.idle:
		x.shape, x.up, x.down = shapeIdle, 1+c.rng.IntN(3), 0
	case x.shape == shapePings:
		x.up, x.down = 1+c.rng.IntN(250), 0
	}
	return x, at.host
}

func (c *steady) once() {
	x, host := c.draw()
	c.registry.register(x)
	c.ledger.open(x.id)
	err := c.exchange(x, host)
	if x.phase == phaseOpening {
		c.ledger.opened(x.id)
	}
	switch {
	case errors.Is(err, errCorrupt):
		c.ledger.violate("%v: at the client: %v", x, err)
	case err != nil:
		c.ledger.judge(x, err)
		pause(50 * time.Millisecond)
	case x.leaves:
		c.ledger.count("left", 1)
	default:
		c.ledger.count("bytes", x.up+x.down)
		c.ledger.count(x.shape, 1)
	}
}

func (c *steady) exchange(x *exchange, host *lab.Host) error {
	conn, err := dialSteady(host, x.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	p := &patient{Conn: conn, x: x}
	p.slow.Store(x.slow)
	if x.leaves {
		defer p.reset()
		if c.rng.IntN(4) == 0 {
			return nil // at once
		}
	}
	if !x.waits {
		if err := c.begin(p, x); err != nil {
			return err
		}
	}
	in := bufio.NewReader(p)
	greeting, err := in.ReadString('\n')
	if err != nil {
		return fmt.Errorf("waiting for the greeting: %w", endOf(err))
	}
	x.backend, x.phase = strings.TrimSpace(greeting), phaseLive
	c.ledger.opened(x.id)
	if x.waits {
		if err := c.begin(p, x); err != nil {
			return err
		}
	}
	if x.leaves {
		return send(p, x.id, false, c.rng.IntN(x.up))
	}
	if err := c.carryOut(p, in, x); err != nil {
		return err
	}
	select {
	case err := <-x.verified:
		return err
	case <-time.After(faultPatience):
		return errors.New("the backend does not hear the end")
	}
}

func (c *steady) begin(p *patient, x *exchange) error {
	_, err := fmt.Fprintln(p, x.id)
	return err
}

func (c *steady) carryOut(p *patient, in *bufio.Reader, x *exchange) error {
	upload := func() error {
		if err := send(p, x.id, false, x.up); err != nil {
			return err
		}
		return p.closeWrite()
	}
	switch x.shape {
	case shapeRequest:
		if err := upload(); err != nil {
			return err
		}
		return receive(in, x.id, true, x.down)
	case shapeResponse:
		if err := receive(in, x.id, true, x.down); err != nil {
			return err
		}
		return upload()
	case shapeDuplex:
		sent := make(chan error, 1)
		go func() { sent <- upload() }()
		return errors.Join(receive(in, x.id, true, x.down), <-sent)
	default:
		if err := c.ping(p, in, x); err != nil {
			return err
		}
		if err := p.closeWrite(); err != nil {
			return err
		}
		if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
			return fmt.Errorf("after the last ping: %q, %w", rest, err)
		}
		return nil
	}
}

// ping says up lines, at a pace at which most of the connections outlive several events.
func (c *steady) ping(p *patient, in *bufio.Reader, x *exchange) error {
	for i := range x.up {
		silence := 20 * time.Millisecond
		if x.shape == shapeIdle {
			silence = time.Second + time.Duration(c.rng.IntN(4000))*time.Millisecond
		}
		if _, err := fmt.Fprintf(p, "ping %d %d\n", x.id, i); err != nil {
			return err
		}
		line, err := in.ReadString('\n')
		if err != nil {
			return fmt.Errorf("ping %d: %w", i, endOf(err))
		}
		if line != fmt.Sprintf("PING %d %d\n", x.id, i) {
			return fmt.Errorf("%w: ping %d answered by %q", errCorrupt, i, line)
		}
		select {
		case <-c.end:
			return nil
		case <-time.After(silence):
		}
	}
	return nil
}

// endOf tells a FIN, where there should be a line, from other errors.
func endOf(err error) error {
	if err == io.EOF {
		return errCutShort
	}
	return err
}

// handshakePatience bounds connecting to the proxy, which accepts at once whatever the backends do.
const handshakePatience = 30 * time.Second

// dialSteady connects. Keep-alive finds soon that a connection was forgotten by connection tracking.
func dialSteady(from *lab.Host, address string) (conn net.Conn, err error) {
	d := net.Dialer{
		Timeout: handshakePatience, FallbackDelay: -1,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: int(faultPatience / time.Second)},
	}
	err = from.Do(func() (err error) {
		conn, err = d.DialTCP(context.Background(), "tcp", netip.AddrPort{}, netip.MustParseAddrPort(address))
		return err
	})
	return conn, err
}
