package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// search is one client connection's way to a backend.
//
// It goes in rounds: each round tries every backend once, in the balancer's order. Backends that answered with a refusal
// are out for good; silent ones are asked again in the next round with twice the patience, since silence may have been
// a lost SYN, or the backend slower than the first round allowed for.
type search struct {
	s       *session
	ctx     context.Context // ends with the dial budget, or when the session is cut
	patient time.Duration
	refused []netip.AddrPort
	tried   []netip.AddrPort // in this round, the refused ones included
	dials   uint64
}

var (
	errNoBackend = errors.New("no backend")
	errExhausted = errors.New("no backend answered")
	errAbandoned = errors.New("the client left")
)

// dial connects the session to a backend. Every failed attempt has been reported to the balancer when it returns.
func (s *session) dial() (*net.TCPConn, netip.AddrPort, error) {
	cfg := &s.listener.relay.cfg
	ctx, cancel := context.WithTimeout(s.ctx, cfg.DialTimeout)
	defer cancel()
	d := search{s: s, ctx: ctx, patient: cfg.TryTimeout}
	conn, backend, err := d.run()
	if d.dials > 1 {
		s.listener.stats.retries.Add(d.dials - 1)
	}
	if err == nil && d.dials > 1 {
		s.listener.stats.retried.Add(1)
	}
	return conn, backend, err
}

func (d *search) run() (*net.TCPConn, netip.AddrPort, error) {
	for {
		backend, ok := d.s.listener.balancer.Pick(d.s.clientIP, d.tried)
		if !ok {
			if !d.nextRound() {
				return nil, netip.AddrPort{}, d.giveUp()
			}
			continue
		}
		conn, err := d.try(backend)
		d.s.listener.balancer.Report(d.s.clientIP, backend, err)
		if err == nil {
			return conn, backend, nil
		}
		d.s.logDial(backend, err)
		d.tried = append(d.tried, backend)
		if !isSilence(err) {
			d.refused = append(d.refused, backend)
		}
		switch {
		case d.ctx.Err() != nil:
			return nil, netip.AddrPort{}, d.giveUp()
		case d.s.client.gone():
			return nil, netip.AddrPort{}, errAbandoned
		}
	}
}

// nextRound reports whether there is any point in asking the silent backends again.
func (d *search) nextRound() bool {
	if len(d.tried) == len(d.refused) || d.ctx.Err() != nil {
		return false
	}
	d.tried = slices.Clone(d.refused)
	d.patient *= 2
	return true
}

func (d *search) giveUp() error {
	if d.dials == 0 {
		return errNoBackend
	}
	return errExhausted
}

// try dials one backend once. When the proxy itself is out of descriptors, ports or memory, that says nothing about the
// backend: the dial is repeated until there are some or the budget is spent.
func (d *search) try(backend netip.AddrPort) (*net.TCPConn, error) {
	d.dials++
	dialer := net.Dialer{KeepAlive: -1, Control: d.s.listener.relay.dialOptions}
	dialer.SetMultipathTCP(false)
	ctx, cancel := context.WithTimeout(d.ctx, d.patient)
	defer cancel()
	retry := backoff{log: d.s.listener.log}
	for {
		conn, err := dialer.DialTCP(ctx, "tcp", netip.AddrPort{}, backend)
		if err == nil || !isShortage(err) || d.ctx.Err() != nil {
			return conn, err
		}
		retry.wait(d.ctx, err)
	}
}

// isSilence reports that the backend has not answered, rather than refused.
func isSilence(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || isTimeout(err)
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func isShortage(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
