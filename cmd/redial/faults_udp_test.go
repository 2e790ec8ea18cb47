package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"
)

// asker is a client of UDP: it keeps its port for some requests, and asks again when an answer does not come, as resolvers
// do.
type asker struct {
	rng      *rand.Rand
	places   []place
	registry *registry
	ledger   *ledger
	end      <-chan struct{}
}

// udpTries is how often a request is sent, udpTry apart.
const (
	udpTries = 3
	udpTry   = time.Second
)

func (c *asker) run() {
	for {
		at := c.places[c.rng.IntN(len(c.places))]
		address := at.udp[c.rng.IntN(len(at.udp))]
		conn, err := openFlow(at.host, 0, address)
		if err != nil {
			c.ledger.violate("opening a UDP socket on %s for %s: %v", at.host.Name, address, err)
			return
		}
		ended := c.ask(conn, at.host.Name, address, 1+c.rng.IntN(50))
		conn.Close()
		if ended {
			return
		}
	}
}

// ask makes requests until one fails, which makes clients use another port, or the client is to end.
func (c *asker) ask(conn net.Conn, from, address string, requests int) (ended bool) {
	for range requests {
		select {
		case <-c.end:
			return true
		case <-time.After(time.Duration(c.rng.IntN(40)) * time.Millisecond):
		}
		x := &exchange{from: from, address: address, shape: shapeRequest, up: 1 + c.rng.IntN(1400), udp: true}
		c.registry.register(x)
		c.registry.all.Delete(x.id) // no connection will look for it
		err := c.request(conn, x)
		c.ledger.count("requests", 1)
		if err != nil {
			c.ledger.judge(x, err)
			return false
		}
	}
	return false
}

func (c *asker) request(conn net.Conn, x *exchange) error {
	body := make([]byte, x.up)
	io.ReadFull(payload(x.id, false), body)
	datagram := append(fmt.Appendf(nil, "%d ", x.id), body...)
	buf := make([]byte, 1<<16)
	var last error
	for range udpTries {
		deadline := time.Now().Add(udpTry)
		conn.SetDeadline(deadline)
		_, last = conn.Write(datagram)
		for last == nil {
			var n int
			if n, last = conn.Read(buf); last != nil {
				break
			}
			name, answer, _ := bytes.Cut(buf[:n], []byte(" "))
			if bytes.Equal(answer, datagram) {
				x.backend = string(name)
				return nil
			}
			// What answers an earlier request that was sent twice begins with a number all the same.
			var id uint64
			if _, err := fmt.Sscan(string(answer[:min(len(answer), 20)]), &id); err != nil || id >= x.id {
				c.ledger.violate("udp %d from %s to %s: answered by %d bytes that are no answer: %.40q", x.id, x.from, x.address, n, buf[:n])
			}
		}
		pause(time.Until(deadline)) // refused: not to be asked again at once
	}
	return fmt.Errorf("not answered after %d datagrams: %w", udpTries, last)
}
