package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"redial/proxy/intercept/lab"
)

// perSecond is the number of new connections, and of queries, to each address.
const perSecond = 40

// target is an address of the demo. Those of one kind are the same question asked of redial and of kernel DNAT.
type target struct {
	name, address string
	kind          kind
	ask           func(*lab.Host, string) (string, error)
}

type kind int

const (
	redialTCP kind = iota
	redialUDP
	dnatTCP
	dnatUDP
	kinds
)

var targets = []target{
	{"redial, ClusterIP", clusterIP, redialTCP, request},
	{"redial, NodePort", nodePort, redialTCP, request},
	{"redial, UDP", dnsIP, redialUDP, query},
	{"kernel DNAT, same backends", dnatIP, dnatTCP, request},
	{"kernel DNAT, UDP", dnatDNS, dnatUDP, query},
}

// patience is how long a client waits for its answer: long enough to send a SYN that was lost twice more, as it may be on a
// machine that has no time for anybody.
const patience = 4 * time.Second

// tally counts requests by the address they went to.
type tally struct {
	done, failed int
	backend      map[string]int
	took         []time.Duration
}

func (c *tally) add(o *tally) {
	c.done += o.done
	c.failed += o.failed
	c.took = append(c.took, o.took...)
	for name, n := range o.backend {
		c.backend[name] += n
	}
}

func newTally() *tally { return &tally{backend: map[string]int{}} }

func (c *tally) shares() string {
	var s []string
	for _, name := range backendNames {
		s = append(s, fmt.Sprint(c.backend[name]))
	}
	return strings.Join(s, "/")
}

// traffic sends requests and counts what becomes of them.
type traffic struct {
	stage   *stage
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	asking  sync.RWMutex // read-locked by each request

	mu      sync.Mutex
	second  map[string]*tally // by address, since the last line
	total   map[string]*tally
	retried uint64
}

func (s *stage) startTraffic(ctx context.Context) *traffic {
	t := &traffic{stage: s, second: map[string]*tally{}, total: map[string]*tally{}}
	t.ctx, t.cancel = context.WithCancel(ctx)
	for _, target := range targets {
		t.second[target.address], t.total[target.address] = newTally(), newTally()
		t.running.Go(func() { t.send(target) })
	}
	return t
}

// send asks one question after the other, without waiting for answers. What falls into an act between requests is not asked
// at all, rather than all at once after it.
func (t *traffic) send(to target) {
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-tick.C:
			if !t.asking.TryRLock() {
				continue
			}
			t.running.Go(func() {
				defer t.asking.RUnlock()
				start := time.Now()
				name, err := to.ask(t.stage.client, to.address)
				t.count(to.address, name, err, time.Since(start))
			})
		}
	}
}

// perform carries out an act of the script.
func (t *traffic) perform(a act) error {
	if a.between {
		t.asking.Lock()
		defer t.asking.Unlock()
	}
	return a.do(t.stage)
}

func (t *traffic) count(address, name string, err error, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.second[address]
	c.done++
	c.took = append(c.took, took)
	if err != nil {
		c.failed++
	} else {
		c.backend[name]++
	}
}

// source gives the NodePort's clients an address of their own. Two addresses of one Service end at one port of the proxy,
// where a client's connections to both may have the same source port. If one is in TIME_WAIT there, the kernel drops the
// other's SYN (PAWS: timestamps of connections to different addresses cannot be compared), a second or more of delay.
func source(address string) netip.AddrPort {
	if address == nodePort {
		return netip.MustParseAddrPort("198.18.64.3:0")
	}
	return netip.MustParseAddrPort("198.18.64.2:0")
}

// request fetches a page over a connection of its own and returns the name of the backend that answered.
func request(from *lab.Host, address string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var conn net.Conn
	err := from.Do(func() (err error) {
		conn, err = (&net.Dialer{}).DialTCP(ctx, "tcp", source(address), netip.MustParseAddrPort(address))
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n"); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	name, err := io.ReadAll(resp.Body)
	return string(name), err
}

// query asks by UDP as a resolver does: without an answer within half its patience it tries once more, from a new port.
func query(from *lab.Host, address string) (name string, err error) {
	for range 2 {
		if name, err = queryOnce(from, address); err == nil {
			break
		}
	}
	return name, err
}

func queryOnce(from *lab.Host, address string) (string, error) {
	var conn net.Conn
	if err := from.Do(func() (err error) { conn, err = net.Dial("udp", address); return err }); err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience / 2))
	if _, err := conn.Write([]byte("who is it?")); err != nil {
		return "", err
	}
	buf := make([]byte, 1500)
	n, err := conn.Read(buf)
	return string(buf[:n]), err
}

// harvest moves the counts of this second to the totals and returns them by kind.
func (t *traffic) harvest() (byKind [kinds]*tally) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range byKind {
		byKind[k] = newTally()
	}
	for _, target := range targets {
		c := t.second[target.address]
		t.total[target.address].add(c)
		byKind[target.kind].add(c)
		t.second[target.address] = newTally()
	}
	return byKind
}

func (t *traffic) printSecond(out io.Writer, second int) {
	before := t.retried
	if n, err := t.stage.retried(context.Background()); err == nil {
		t.retried = n
	}
	now := t.harvest()
	fmt.Fprintf(out, "%3d  %5d %6d %7d  %-9s %4d %6d   %5d %6d  %-9s %4d %6d\n", second,
		now[redialTCP].done, now[redialTCP].failed, t.retried-before, now[redialTCP].shares(), now[redialUDP].done, now[redialUDP].failed,
		now[dnatTCP].done, now[dnatTCP].failed, now[dnatTCP].shares(), now[dnatUDP].done, now[dnatUDP].failed)
}

func (t *traffic) stop() {
	t.cancel()
	t.running.Wait() // at most as long as a client is patient
}

// printTotals ends the demo. Its error is a failed request through redial.
func (t *traffic) printTotals(out io.Writer) error {
	t.harvest()
	fmt.Fprintf(out, "\n%-34s %8s %7s %9s %9s\n", "", "requests", "failed", "median", "slowest")
	failed := 0
	for _, target := range targets {
		c := t.total[target.address]
		slices.Sort(c.took)
		median, slowest := time.Duration(0), time.Duration(0)
		if n := len(c.took); n > 0 {
			median, slowest = c.took[n/2], c.took[n-1]
		}
		fmt.Fprintf(out, "%-34s %8d %7d %9s %9s\n", target.name, c.done, c.failed, median.Round(10*time.Microsecond), slowest.Round(time.Millisecond))
		if target.kind == redialTCP || target.kind == redialUDP {
			failed += c.failed
		}
	}
	fmt.Fprintf(out, "connections that redial took to a second backend: %d\n", t.retried)
	if failed > 0 {
		return fmt.Errorf("%d requests through redial failed\n%s", failed, t.stage.redialLog())
	}
	return nil
}
