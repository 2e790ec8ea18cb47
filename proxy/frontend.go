package proxy

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"redial/balancer"
	"redial/config"
	"redial/proxy/relay"
)

// frontend is where the clients of one Service port arrive, in one family.
type frontend struct {
	key       frontendKey
	port      uint16 // the proxy port; all listeners have it unless they listen on a VIP itself
	balancer  *balancer.Balancer
	listeners map[netip.AddrPort]listener
	vips      []vip // those steered here since the last successful sync
	open      bool
	// broken is why the frontend has to be opened anew, on another port.
	broken error
}

// listener is a socket of the relay, TCP or UDP.
type listener interface {
	Serve()
	SetOpen(bool) error
	Close() error
	Stats() relay.Stats
}

func (f *frontend) listenAt(r *relay.Relay, addr netip.AddrPort) (listener, error) {
	if f.key.name.Protocol == config.UDP {
		return r.ListenUDP(addr, f.key.name.String(), f.balancer)
	}
	return r.Listen(addr, f.key.name.String(), f.balancer)
}

// listen opens the listeners that are missing at addrs.
func (f *frontend) listen(r *relay.Relay, addrs []netip.AddrPort) error {
	for _, addr := range addrs {
		if _, ok := f.listeners[addr]; ok {
			continue
		}
		l, err := f.listenAt(r, addr)
		if err != nil {
			return err
		}
		f.listeners[addr] = l
		if err := l.SetOpen(f.open); err != nil {
			return err
		}
		go l.Serve()
	}
	return nil
}

// keep closes the listeners that are not at addrs.
func (f *frontend) keep(addrs []netip.AddrPort) {
	for addr, l := range f.listeners {
		if !slices.Contains(addrs, addr) {
			l.Close()
			delete(f.listeners, addr)
		}
	}
}

// update takes new endpoints in. It does not touch the listening sockets unless the usable set becomes empty or stops being
// so.
func (f *frontend) update(port *config.ServicePort, log *logrus.Entry) {
	usable := config.Usable(port.Endpoints, f.key.family, config.ClusterPool, config.Node{})
	backends := make([]balancer.Backend, len(usable))
	for i, addr := range usable {
		backends[i] = balancer.Backend{Addr: addr, Weight: 1}
	}
	f.balancer.Update(balancer.Config{Backends: backends, Affinity: port.Affinity, Probe: f.key.name.Protocol != config.UDP})
	for _, l := range f.listeners {
		if udp, ok := l.(*relay.UDPListener); ok {
			udp.Retain(usable)
		}
	}
	open := len(usable) > 0
	if open == f.open {
		return
	}
	f.open = open
	if len(f.listeners) == 0 {
		return // not opened yet: that will be the news
	}
	log = log.WithFields(logrus.Fields{"service": f.key.name, "family": f.key.family})
	if open {
		log.WithField("backends", len(usable)).Info("clients are served")
	} else {
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

// close stops accepting. Connections that are live go on.
func (f *frontend) close() { f.keep(nil) }

// stats adds up the listeners.
func (f *frontend) stats() relay.Stats {
	var sum relay.Stats
	for l := range maps.Values(f.listeners) {
		sum = sum.Add(l.Stats())
	}
	return sum
}

func portTaken(err error) bool { return errors.Is(err, unix.EADDRINUSE) }
