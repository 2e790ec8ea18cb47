package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"redial/balancer"
	"redial/config"
	"redial/proxy/relay"
)

// frontend is where clients of one Service port arrive, in one family and for one pool of endpoints.
type frontend struct {
	key       frontendKey
	port      uint16      // the proxy port; 0: none, all listeners listen on a VIP itself
	shared    *sharedPort // whose port it is; nil: its own. There may be listeners on VIPs beside it.
	balancer  *balancer.Balancer
	scheduler balancer.Scheduler // of ports that ask for none
	name      string             // key.name, for others to show
	listeners []bound            // one, unless they listen on VIPs
	settings  *relay.Settings    // of all listeners; never nil
	// guarded are the only destinations for which its listeners take connections; nil: there is no such restriction.
	guarded []netip.AddrPort
	// drain is how long connections may outlive their endpoint; not set: they are left alone.
	drain config.Setting[time.Duration]
	vips  []vip // those steered here since the last successful sync
	open  bool
	// serving are the endpoints, usable or not, that go on with the clients they have, where others do not.
	serving []netip.AddrPort
	// behind is what the balancer was told last, of a frontend that may have to drop; nil: nothing, or it may not.
	behind *balancer.Config
	// drops means that clients are to be dropped without an answer, not refused: the pool is the node's and has no usable
	// endpoint, and others have. A load balancer's clients, whom it sent here by an outdated health check, then try again
	// and arrive elsewhere; a reset they would take for the answer.
	drops bool
	// asked is what drops was when the bindings of the latest sync were made, and dropped what it was for the last one
	// that succeeded.
	asked, dropped bool
	// broken is why the frontend has to be opened anew, on another port.
	broken error
}

// bound is a listener at an address.
type bound struct {
	addr netip.AddrPort
	listener
}

// listener is a socket of the relay, TCP or UDP.
type listener interface {
	Serve()
	SetOpen(bool) error
	Close() error
	Stats() relay.Stats
	Configure(relay.Settings)
}

func (f *frontend) listenAt(r *relay.Relay, addr netip.AddrPort) (listener, error) {
	if f.key.name.Protocol == config.UDP {
		return r.ListenUDP(addr, f.name, f.balancer)
	}
	if f.sharesAt(addr) {
		return f.shared.Listen(f.name, f.balancer)
	}
	return r.Listen(addr, f.name, f.balancer)
}

// listen opens the listeners that are missing at addrs. One that cannot be opened does not hold up the others.
func (f *frontend) listen(r *relay.Relay, addrs []netip.AddrPort) error {
	var errs []error
	for _, addr := range addrs {
		if f.listensAt(addr) {
			continue
		}
		l, err := f.listenAt(r, addr)
		if err != nil {
			if portTaken(err) && addr.Port() != f.port {
				err = fmt.Errorf("%w: another process has the port, there or at all addresses of the node: have it listen on an address of its own, or give the Service another port", err)
			}
			if errors.Is(err, unix.EACCES) {
				err = fmt.Errorf("%w: ports below 1024 take CAP_NET_BIND_SERVICE, or a lower net.ipv4.ip_unprivileged_port_start", err)
			}
			errs = append(errs, err)
			continue
		}
		f.listeners = append(slices.Clip(f.listeners), bound{addr, l})
		l.Configure(*f.settings)
		if err := l.SetOpen(f.open); err != nil {
			errs = append(errs, err)
		}
		if f.guarded != nil {
			l.(*relay.Listener).Confine(f.guarded)
		}
		l.Serve()
	}
	return errors.Join(errs...)
}

// keep closes the listeners that are not at addrs, and returns those of them that are of TCP.
func (f *frontend) keep(addrs []netip.AddrPort) (closed []*relay.Listener) {
	f.listeners = slices.DeleteFunc(f.listeners, func(l bound) bool {
		gone := !slices.Contains(addrs, l.addr)
		if gone {
			l.Close()
			if l, ok := l.listener.(*relay.Listener); ok {
				closed = append(closed, l)
			}
		}
		return gone
	})
	return closed
}

// tcp are its listeners of TCP.
func (f *frontend) tcp() (listeners []*relay.Listener) {
	for _, l := range f.listeners {
		if l, ok := l.listener.(*relay.Listener); ok {
			listeners = append(listeners, l)
		}
	}
	return listeners
}

func (f *frontend) listensAt(addr netip.AddrPort) bool {
	return slices.ContainsFunc(f.listeners, func(l bound) bool { return l.addr == addr })
}

// addrs are where it listens.
func (f *frontend) addrs() []netip.AddrPort {
	addrs := make([]netip.AddrPort, len(f.listeners))
	for i, l := range f.listeners {
		addrs[i] = l.addr
	}
	return addrs
}

// update takes new endpoints in, and reports whether that takes rules: clients should begin or stop to be dropped or, where
// the listener is shared, to be refused. It does not touch the listening sockets unless the usable set becomes empty or stops
// being so.
//
// A frontend that begins to drop goes on with the backends it had until [frontend.settle]: emptied now, it would reset the
// clients that come before the rule is written. A pod that is just leaving often still answers, and where it does not,
// nothing is worse. Giving those clients the endpoints of other nodes would be kinder still, but what the policy Local
// forbids.
func (f *frontend) update(port *config.ServicePort, limit *relay.Limit, node config.Node, log *logrus.Entry) (flipped bool) {
	if s := settings(port, limit); f.settings == nil || s != *f.settings {
		f.settings = shared(s)
		for _, l := range f.listeners {
			l.Configure(s)
		}
	}
	drain := port.Settings.Value().DrainTimeout
	if f.drain.IsSet() && !drain.IsSet() {
		for _, l := range f.tcp() {
			l.Retain(nil, -1)
		}
	}
	f.drain = drain
	usable := config.Usable(port.Endpoints, f.key.family, f.key.pool, node)
	f.serving = nil
	if f.retains() {
		f.serving = config.Serving(port.Endpoints, f.key.family)
	}
	before, wasOpen := f.drops, f.open
	f.drops = f.key.pool == config.LocalPool && len(usable) == 0 &&
		len(config.Usable(port.Endpoints, f.key.family, config.ClusterPool, node)) > 0
	if f.drops && f.open {
		f.behind.Affinity = port.Affinity
		f.balancer.Update(*f.behind)
	} else {
		f.apply(behind(port, usable, f.scheduler), log)
	}
	return f.drops != before || f.shared != nil && f.open != wasOpen
}

// settle follows a successful sync: what is dropped by now has no use for backends.
func (f *frontend) settle(log *logrus.Entry) {
	f.dropped = f.asked
	if f.dropped && f.drops && f.open {
		empty := *f.behind
		empty.Backends = nil
		f.apply(empty, log)
	}
}

// retains reports whether an endpoint's end is that of what goes to it.
func (f *frontend) retains() bool { return f.key.name.Protocol == config.UDP || f.drain.IsSet() }

// retain ends what goes to other backends than kept: UDP sessions at once, which have no end of their own to wait for,
// connections only if the Service says when.
func (f *frontend) retain(kept []netip.AddrPort) {
	for _, l := range f.listeners {
		switch l := l.listener.(type) {
		case *relay.UDPListener:
			l.Retain(kept)
		case *relay.Listener:
			if f.drain.IsSet() {
				l.Retain(kept, f.drain.Or(0))
			}
		}
	}
}

func (f *frontend) apply(c balancer.Config, log *logrus.Entry) {
	if f.key.pool == config.LocalPool {
		told := c // a copy, as most have no need of it
		f.behind = &told
	}
	f.balancer.Update(c)
	usable := make([]netip.AddrPort, len(c.Backends))
	for i, b := range c.Backends {
		usable[i] = b.Addr
	}
	f.retain(slices.Concat(usable, f.serving))
	open := len(usable) > 0
	if open == f.open {
		return
	}
	f.open = open
	if len(f.listeners) == 0 {
		return // not opened yet: that will be the news
	}
	log = log.WithFields(f.key.fields())
	switch {
	case open:
		log.WithField("backends", len(usable)).Info("clients are served")
	case f.drops:
		log.Info("no usable backend on this node: clients are dropped")
	default:
		log.Info("no usable backend: clients are refused")
	}
	for _, l := range f.listeners {
		if err := l.SetOpen(open); err != nil {
			// Only opening can fail: somebody took the port while it was not listened on.
			f.broken = err
			log.WithError(err).Warn("proxy port lost, moving to another one")
		}
	}
}

// fields name a frontend in the log.
func (k frontendKey) fields() logrus.Fields {
	return logrus.Fields{"service": k.name, "family": k.family, "pool": k.pool}
}

// close stops accepting, and returns what keep does. Connections that are live go on.
func (f *frontend) close() []*relay.Listener { return f.keep(nil) }

// stats adds up the listeners.
func (f *frontend) stats() relay.Stats {
	var sum relay.Stats
	for _, l := range f.listeners {
		sum = sum.Add(l.Stats())
	}
	return sum
}

func portTaken(err error) bool { return errors.Is(err, unix.EADDRINUSE) }
