package relay

import (
	"net/netip"

	"github.com/sirupsen/logrus"
)

// Confine has a socket that is not shared take connections for these destinations only, as connection tracking knows them,
// and reset others, which are counted in [Stats].Strays; nil: it takes all again, once those are through that were in the
// accept queue. It is for the time in which rules may be in force that lead clients of other Listeners here.
func (l *Listener) Confine(destinations []netip.AddrPort) {
	a := l.socket
	a.loop.do(func() {
		if destinations == nil {
			a.freeing = true
			a.accept() // to the end of the queue: what is in there came by those rules
			return
		}
		a.routes, a.freeing = make(map[netip.AddrPort]*Listener, len(destinations)), false
		for _, to := range destinations {
			a.routes[to] = l
		}
	})
}

// listenerOf returns whose an accepted connection is; nil: nobody's. It runs in the loop, like everything below.
func (a *acceptor) listenerOf(fd int, client netip.Addr) *Listener {
	to, ok := a.destination(fd, client)
	if !ok {
		return nil
	}
	l := a.routes[to]
	if l == nil {
		l = a.routes[netip.AddrPortFrom(unspecified(to.Addr()), to.Port())]
	}
	if l == nil || l.share != nil && l.share.ended {
		return nil
	}
	return l
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func (a *acceptor) refuseStray(fd int, client netip.Addr) {
	a.counters().strays.Add(1)
	if log := a.relay.cfg.Log; log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		to, _ := a.destination(fd, client)
		log.WithFields(logrus.Fields{"frontend": a.addr, "client": client, "destination": to}).Debug("connection reset: nobody serves its destination here")
	}
	abort(fd)
}
