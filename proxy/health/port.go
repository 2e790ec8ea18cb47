package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"
)

// port is one health check port: a server with a listener on each address.
type port struct {
	number    uint16
	log       *logrus.Entry
	server    *http.Server
	local     atomic.Int64
	listeners map[listenAddr]*listener // guarded by Services.mu
}

// listenAddr is an address to listen on.
type listenAddr struct {
	network string // tcp4, tcp6, or tcp for both
	host    string // empty: all addresses
}

// listener is an open one. broken is set by its goroutine when it ends, by close or by itself.
type listener struct {
	net.Listener
	broken atomic.Bool
}

// listen makes the port be open on exactly these addresses. It opens those that it can, whatever becomes of the others.
func (p *port) listen(addrs []listenAddr, running *sync.WaitGroup) error {
	for at, l := range p.listeners {
		if l.broken.Load() || !slices.Contains(addrs, at) {
			p.closeListener(l)
			delete(p.listeners, at)
		}
	}
	if len(addrs) == 0 {
		return errNoAddress
	}
	var errs []error
	for _, at := range addrs {
		if p.listeners[at] != nil {
			continue
		}
		tcp, err := (&net.ListenConfig{}).Listen(context.Background(), at.network, net.JoinHostPort(at.host, strconv.Itoa(int(p.number))))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l := &listener{Listener: tcp}
		p.listeners[at] = l
		running.Go(func() { p.serve(l) })
		p.log.WithField("address", l.Addr().String()).Info("health checks are answered")
	}
	return errors.Join(errs...)
}

// serve answers on l until it is closed, by listen or close.
func (p *port) serve(l *listener) {
	_ = p.server.Serve(l) // it closes l; the next Sync opens another one if that was not asked for
	l.broken.Store(true)
}

func (p *port) close() {
	p.server.Close() // with the connections of those who ask again and again
	for _, l := range p.listeners {
		p.closeListener(l) // the server knows only those that Serve has got to
	}
}

func (p *port) closeListener(l *listener) {
	l.Close()
	p.log.WithField("address", l.Addr().String()).Info("health checks are not answered any more")
}

// listenAddrs returns where to listen, given the prefixes that addresses of the node have to be in; nil means all
// addresses.
func listenAddrs(prefixes []netip.Prefix) ([]listenAddr, error) {
	if prefixes == nil {
		return []listenAddr{{network: "tcp"}}, nil
	}
	if slices.ContainsFunc(prefixes, everyV4) && slices.ContainsFunc(prefixes, everyV6) {
		return []listenAddr{{network: "tcp"}}, nil
	}
	found, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listing the node's addresses: %w", err)
	}
	var addrs []listenAddr
	add := func(network, host string) {
		if at := (listenAddr{network, host}); !slices.Contains(addrs, at) {
			addrs = append(addrs, at)
		}
	}
	for _, f := range found {
		ipnet, ok := f.(*net.IPNet)
		if !ok {
			continue
		}
		a, ok := netip.AddrFromSlice(ipnet.IP)
		a = a.Unmap()
		if !ok || !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			continue
		}
		switch {
		case a.Is4() && slices.ContainsFunc(prefixes, everyV4):
			add("tcp4", "")
		case a.Is4():
			add("tcp4", a.String())
		case slices.ContainsFunc(prefixes, everyV6):
			add("tcp6", "")
		case a.IsLinkLocalUnicast():
			// It needs a zone to be listened on, and no load balancer comes that way.
		default:
			add("tcp6", a.String())
		}
	}
	return addrs, nil
}

func everyV4(p netip.Prefix) bool { return p.Bits() == 0 && p.Addr().Is4() }
func everyV6(p netip.Prefix) bool { return p.Bits() == 0 && p.Addr().Is6() }
