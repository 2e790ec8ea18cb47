package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"redial/proxy/intercept/lab"
)

// Client asks what runs in pods, from a host: a pod's, a node's or one outside.
type Client struct {
	Host *lab.Host
	// Patience is what one request may take; zero means 20 s, which only a failing one takes.
	Patience time.Duration
	// Source is the address, the port or both to ask from; zero leaves them to the kernel.
	Source netip.AddrPort
}

// Ask sends one request (see redial/cmd/redial/cluster/pod), over a connection or socket of its own, and returns the
// answer. The network is "tcp" or "udp".
func (c Client) Ask(network string, to netip.AddrPort, request string) (string, error) {
	s, err := c.Open(network, to)
	if err != nil {
		return "", err
	}
	defer s.Close()
	if network == "tcp" && request == "hostname" {
		return s.Name, nil // the greeting
	}
	return s.Ask(request)
}

// Session is a connection, or a UDP socket that keeps its port. It is not for concurrent use.
type Session struct {
	net.Conn
	Name     string // of the pod that greeted; TCP only
	patience time.Duration
	lines    *bufio.Reader // nil for UDP
}

// Open connects. Over TCP it returns when a pod has greeted; over UDP nothing is sent yet.
func (c Client) Open(network string, to netip.AddrPort) (*Session, error) {
	s := &Session{patience: c.Patience}
	if s.patience == 0 {
		s.patience = 20 * time.Second
	}
	d := net.Dialer{Timeout: s.patience}
	switch {
	case !c.Source.IsValid():
	case network == "udp":
		d.LocalAddr = net.UDPAddrFromAddrPort(c.Source)
	default:
		d.LocalAddr = net.TCPAddrFromAddrPort(c.Source)
	}
	err := c.Host.Do(func() (err error) {
		s.Conn, err = d.DialContext(context.Background(), network, to.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("from %s: %w", c.Host.Name, err)
	}
	if network == "udp" {
		return s, nil
	}
	s.lines = bufio.NewReader(s.Conn)
	if s.Name, err = s.line(); err != nil {
		s.Close()
		return nil, fmt.Errorf("from %s to %s: waiting for the greeting: %w", c.Host.Name, to, err)
	}
	return s, nil
}

// Ask sends one request and returns the answer.
func (s *Session) Ask(request string) (string, error) {
	if s.lines != nil {
		request += "\n"
	}
	_, err := s.Write([]byte(request))
	var answer string
	if err == nil {
		answer, err = s.line()
	}
	if err != nil {
		return "", fmt.Errorf("asking %s: %w", s.RemoteAddr(), err)
	}
	return answer, nil
}

// line reads one line or datagram.
func (s *Session) line() (string, error) {
	if err := s.SetReadDeadline(time.Now().Add(s.patience)); err != nil {
		return "", err
	}
	if s.lines != nil {
		line, err := s.lines.ReadString('\n')
		return strings.TrimSuffix(line, "\n"), err
	}
	buf := make([]byte, 1<<16)
	n, err := s.Read(buf)
	return string(buf[:n]), err
}

// Tally is how a number of requests went.
type Tally struct {
	Answers  map[string]int // by what was answered
	Failures []error
}

// Names returns how many different answers there were.
func (t Tally) Names() int { return len(t.Answers) }

// Failed is the first failures, joined; nil if there was none.
func (t Tally) Failed() error {
	if len(t.Failures) == 0 {
		return nil
	}
	return fmt.Errorf("%d requests failed, the first ones: %w", len(t.Failures), errors.Join(t.Failures[:min(3, len(t.Failures))]...))
}

func (t *Tally) add(answer string, err error) {
	if err != nil {
		t.Failures = append(t.Failures, err)
		return
	}
	if t.Answers == nil {
		t.Answers = map[string]int{}
	}
	t.Answers[answer]++
}

// Count asks n times, one after the other, who answers.
func (c Client) Count(network string, to netip.AddrPort, n int) Tally {
	var t Tally
	for range n {
		t.add(c.Ask(network, to, "hostname"))
	}
	return t
}

// Load is steady traffic: one new connection after the other.
type Load struct {
	once  sync.Once
	stop  chan struct{}
	done  chan struct{} // closed when it has ended, after tally was set
	tally Tally
}

// Load starts asking who answers, a request after every pause, until Stop.
func (c Client) Load(network string, to netip.AddrPort, pause time.Duration) *Load {
	l := &Load{stop: make(chan struct{}), done: make(chan struct{})}
	go l.run(c, network, to, pause)
	return l
}

// run ends when Stop was called.
func (l *Load) run(c Client, network string, to netip.AddrPort, pause time.Duration) {
	defer close(l.done)
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		l.tally.add(c.Ask(network, to, "hostname"))
		select {
		case <-l.stop:
			return
		case <-tick.C:
		}
	}
}

// Stop ends the traffic and returns how it went.
func (l *Load) Stop() Tally {
	l.once.Do(func() { close(l.stop) })
	<-l.done
	return l.tally
}
