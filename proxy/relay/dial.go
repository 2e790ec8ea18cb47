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
	pause   backoff // between rounds
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
	if d.s.waited && d.s.client.gone() {
		return nil, netip.AddrPort{}, errAbandoned
	}
	for {
		backend, ok := d.s.listener.balancer.Pick(d.s.clientIP, d.tried)
		if !ok {
			if !d.nextRound() {
				return nil, netip.AddrPort{}, d.giveUp()
			}
			continue
		}
		conn, took, err := d.try(backend)
		d.s.listener.balancer.Report(d.s.clientIP, backend, took, reason(err))
		if err == nil {
			return conn, backend, nil
		}
		d.s.logDial(backend, err)
		d.tried = append(d.tried, backend)
		if !isSilence(err) {
			d.refused = append(d.refused, backend)
		}
		switch {
		case d.over():
			return nil, netip.AddrPort{}, d.giveUp()
		case d.s.client.gone():
			return nil, netip.AddrPort{}, errAbandoned
		}
	}
}

// nextRound reports whether there is any point in asking the silent backends again.
func (d *search) nextRound() bool {
	if len(d.tried) == len(d.refused) || d.over() {
		return false
	}
	d.tried = slices.Clone(d.refused)
	d.patient *= 2
	d.pause.wait(d.ctx) // a dial may also fail at once, for want of a local port
	return !d.over()
}

func (d *search) giveUp() error {
	if d.dials == 0 {
		return errNoBackend
	}
	return errExhausted
}

// try dials one backend once, and says how long that took. When the proxy itself is out of descriptors, ports or memory, that says nothing about the
// backend: the dial is repeated until there are some or the budget is spent.
func (d *search) try(backend netip.AddrPort) (*net.TCPConn, time.Duration, error) {
	d.dials++
	dialer := net.Dialer{KeepAlive: -1, Control: d.s.listener.relay.dialOptions}
	dialer.SetMultipathTCP(false)
	var retry backoff
	for {
		began := time.Now()
		ctx, cancel := context.WithTimeout(d.ctx, d.patient) // anew: waiting for descriptors is not the backend's silence
		conn, err := dialer.DialTCP(ctx, "tcp", netip.AddrPort{}, backend)
		cancel()
		took := time.Since(began)
		switch {
		case err == nil:
			return conn, took, nil
		case d.over() && (isShortage(err) || isSilence(err) && took < d.s.listener.relay.cfg.TryTimeout):
			return nil, 0, context.Canceled // given up for reasons of our own: says nothing about the backend
		case errors.Is(err, unix.EADDRNOTAVAIL): // no local port is left towards this backend; towards others there may be
			d.s.listener.relay.complain(err, "no local port left for a backend, trying others")
			return nil, 0, context.Canceled
		case !isShortage(err):
			return nil, took, err
		}
		d.s.listener.relay.complain(err, "cannot dial backends, retrying")
		retry.wait(d.ctx)
	}
}

// over reports that the budget is spent or the session cut. The clock is asked as well: a dial may hear of the deadline
// before the context does.
func (d *search) over() bool {
	deadline, _ := d.ctx.Deadline()
	return d.ctx.Err() != nil || !time.Now().Before(deadline)
}

// reason is what went wrong without the addresses, which whoever asks knows.
func reason(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
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
