package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// search is one client connection's way to a backend.
//
// It goes in rounds: each round tries every backend once, in the balancer's order. Backends that answered with a refusal
// are out for good; silent ones are asked again in the next round with twice the patience, since silence may have been
// a lost SYN, or the backend slower than the first round allowed for.
//
// Within a round, a backend that is silent for longer than usual gets a rival, see hedge.go.
type search struct {
	deadline time.Duration // when the dial budget is spent
	began    time.Duration // of the present attempt
	delay    time.Duration // of its rival
	patience time.Duration
	refused  []netip.AddrPort
	tried    []netip.AddrPort // in this round: the refused ones and those that are being dialled included
	rival    rival
	dials    uint64
	asked    bool    // a backend was picked and not reported yet
	allowed  bool    // another dial is
	free     bool    // all dials are, but for the connection's own limit
	second   bool    // it is no longer the first dial that will have succeeded
	charged  bool    // for the rival's descriptor
	left     error   // how the last backend has ended the connection before a byte moved; nil: none has
	short    bool    // the timer is for another try at the same backend, for want of descriptors
	retry    backoff // of those tries
	pause    backoff // between rounds
}

// begin counts a dial.
func (s *search) begin(backend netip.AddrPort) {
	s.dials++
	s.allowed = false
	s.tried = append(s.tried, backend)
}

// verdict is why a search that is over has found nothing.
func (s *search) verdict() error {
	if s.dials == 0 {
		return errNoBackend
	}
	return errExhausted
}

func (lp *tcpLoop) newSearch() *search {
	if n := len(lp.searches); n > 0 {
		s := lp.searches[n-1]
		lp.searches = lp.searches[:n-1]
		return s
	}
	return new(search)
}

func (lp *tcpLoop) endSearch(c *conn) {
	const most = 256
	s := c.search
	c.search = nil
	if s.rival.flying {
		s.rival.end.close()
	}
	if s.charged {
		lp.relay.fds.Release(1)
	}
	*s = search{tried: s.tried[:0], refused: s.refused[:0]}
	if len(lp.searches) < most {
		lp.searches = append(lp.searches, s)
	}
}

// isSilence reports that the backend has not answered, rather than refused.
func isSilence(err error) bool { return errors.Is(err, context.Canceled) || isTimeout(err) }

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
