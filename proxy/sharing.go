package proxy

import (
	"fmt"
	"hash/fnv"
	"iter"
	"net/netip"

	"github.com/sirupsen/logrus"

	"redial/config"
	"redial/proxy/intercept"
	"redial/proxy/relay"
)

// What happens when there are more Service ports than proxy ports or descriptors: frontends of TCP that come when the range,
// or their share of the descriptors, is used up, share listeners, which tell their connections apart by the address that the
// client has dialled. Those that have a port of their own keep it, and those that share go on sharing until they are made
// anew, so that nothing moves back and forth. UDP does not share, as its sockets have no such address; some descriptors
// are left for it.
//
// The pools of endpoints share separately: with an external policy Local, a VIP is of both. Each has several listeners, which
// different loops serve, and a frontend's name says which one it has.
//
// A shared listener cannot refuse the clients of one frontend. So those of a frontend without a usable backend are steered
// to a port that is ours and not listened on: with these frontends, unlike with others, a rule is written when the first
// usable backend comes, and when the last one goes. Until it is in force, their connections are refused, and reset.
type sharing struct {
	most   int // listeners of one family and pool; 0: frontends cannot share
	able   map[config.Family]bool
	by     map[config.Family]intercept.Sharer // who is given the listeners; nil: rules lead there
	unable map[config.Family]error            // why frontends that listen on VIPs cannot share
	open   map[sharedKey][]*sharedPort
	// full are the families in which every port has been tried in vain since one became free.
	full map[config.Family]bool
}

// sharedKey identifies the listeners that some frontends share. Without a pool it is the one that is never open.
type sharedKey struct {
	family config.Family
	pool   config.Pool
}

// sharedPort is a listener that frontends share.
type sharedPort struct {
	*relay.SharedListener
	// routes tell whose the connections to each destination are, as the listener was told.
	routes map[netip.AddrPort]*relay.Listener
}

// mostShared bounds the listeners of one family and pool.
const mostShared = 16

// newSharing decides how many listeners there may be of each kind: one per loop, but not too many for a small range.
func newSharing(cfg *Config) sharing {
	s := sharing{
		able: map[config.Family]bool{}, by: map[config.Family]intercept.Sharer{}, unable: map[config.Family]error{},
		open: map[sharedKey][]*sharedPort{}, full: map[config.Family]bool{},
	}
	for _, family := range config.Families {
		s.able[family] = true
		if limitsIn(family, cfg.Interceptor).OwnListeners {
			s.by[family], s.unable[family] = intercept.SharerOf(cfg.Interceptor, family == config.IPv6)
			s.able[family] = s.unable[family] == nil
		}
	}
	if size := cfg.Ports.Size(); size >= 8 && (s.able[config.IPv4] || s.able[config.IPv6]) {
		s.most = min(max(size/16, 1), cfg.Relay.Loops(), mostShared)
	}
	return s
}

// ports is how many proxy ports it takes in each family: for two pools, and the one for refusals.
func (s *sharing) ports() int {
	if s.most == 0 {
		return 0
	}
	return 2*s.most + 1
}

// shares reports whether a frontend that is to be opened has to share.
func (p *Proxier) shares(key frontendKey) bool {
	if !p.mayShare(key) {
		return false
	}
	used := p.cfg.Relay.Usage()
	return p.sharing.full[key.family] || used.Listeners >= used.MaxListeners-used.MaxListeners/4
}

func (p *Proxier) mayShare(key frontendKey) bool {
	return p.sharing.most > 0 && p.sharing.able[key.family] && key.name.Protocol == config.TCP
}

// listenAddr is where f listens for a VIP, or is to. Who listens on the VIP itself goes on doing so.
func (p *Proxier) listenAddr(f *frontend, v intercept.VIP) netip.AddrPort {
	if own := p.cfg.Interceptor.BindAddr(v, 0); f.listensAt(own) {
		return own
	}
	return p.cfg.Interceptor.BindAddr(v, f.port)
}

// sharesAt reports whether what f has at addr is a shared listener.
func (f *frontend) sharesAt(addr netip.AddrPort) bool {
	return f.shared != nil && f.shared.Addr() == addr
}

// sharedListener returns the listener that a frontend is to share. All of its kind are opened together, and stay.
func (p *Proxier) sharedListener(key frontendKey, vips []vip) (*sharedPort, error) {
	refusals := sharedKey{family: key.family}
	if len(p.sharing.open[refusals]) == 0 {
		l, err := p.bindShared(vips[0].VIP)
		if err != nil {
			return nil, err
		}
		if err := l.SetOpen(false); err != nil {
			return nil, err
		}
		p.sharing.open[refusals] = []*sharedPort{l}
	}
	of := sharedKey{key.family, key.pool}
	if len(p.sharing.open[of]) == 0 {
		var ports []uint16
		for range p.sharing.most {
			l, err := p.openShared(vips[0].VIP)
			if err != nil && len(p.sharing.open[of]) == 0 {
				return nil, err
			} else if err != nil {
				break
			}
			l.Serve()
			p.sharing.open[of] = append(p.sharing.open[of], l)
			ports = append(ports, l.Addr().Port())
		}
		p.log.WithFields(logrus.Fields{"family": of.family, "pool": of.pool, "ports": ports}).
			Info("no proxy ports or file descriptors are left: frontends opened from now on share these ports")
	}
	listeners := p.sharing.open[of]
	h := fnv.New64a()
	fmt.Fprint(h, key.name)
	return listeners[h.Sum64()%uint64(len(listeners))], nil
}

// openShared opens a listener to which clients can be led.
func (p *Proxier) openShared(v intercept.VIP) (*sharedPort, error) {
	l, err := p.bindShared(v)
	by := p.sharing.by[config.FamilyOf(v.Addr)]
	if err != nil || by == nil {
		return l, err
	}
	if err := l.Control(func(fd int) error { return by.Share(l.Addr(), fd) }); err != nil {
		l.Close()
		p.ports.release(sharedPortKey(v), l.Addr().Port())
		return nil, err
	}
	return l, nil
}

func (p *Proxier) bindShared(v intercept.VIP) (*sharedPort, error) {
	family := config.FamilyOf(v.Addr)
	listen := p.cfg.Relay.ListenShared
	if p.sharing.by[family] != nil {
		listen = p.cfg.Relay.ListenAssigned
	}
	for port := range p.ports.fromTheEnd(family) {
		l, err := listen(p.cfg.Interceptor.BindAddr(v, port))
		if portTaken(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		p.ports.take(sharedPortKey(v), port)
		return &sharedPort{l, map[netip.AddrPort]*relay.Listener{}}, nil
	}
	return nil, p.noPort()
}

// sharedPortKey is for the allocator.
func sharedPortKey(v intercept.VIP) frontendKey {
	return frontendKey{name: config.ServicePortName{Protocol: config.TCP}, family: config.FamilyOf(v.Addr)}
}

func (p *Proxier) noPort() error {
	return fmt.Errorf("no free proxy port in %s: widen --proxy-port-range", p.ports.ports)
}

// refusal is where a VIP is steered to whose clients are to be refused.
func (p *Proxier) refusal(v intercept.VIP) netip.AddrPort {
	l := p.sharing.open[sharedKey{family: config.FamilyOf(v.Addr)}][0]
	return p.cfg.Interceptor.BindAddr(v, l.Addr().Port())
}

// route tells listeners which connections are theirs. It comes before the rules that lead them there are written, and takes
// nothing away but what others are to have.
func (p *Proxier) route(plan *plan) {
	changes := map[*sharedPort]map[netip.AddrPort]*relay.Listener{}
	for key, vips := range plan.frontends {
		f := p.frontends[key]
		if f == nil || f.shared == nil {
			continue
		}
		for _, l := range f.listeners {
			if !f.sharesAt(l.addr) {
				continue
			}
			for to := range p.sharedBy(f, vips) {
				l := l.listener.(*relay.Listener)
				if f.shared.routes[to] == l {
					continue
				}
				if changes[f.shared] == nil {
					changes[f.shared] = map[netip.AddrPort]*relay.Listener{}
				}
				changes[f.shared][to], f.shared.routes[to] = l, l
			}
		}
	}
	for s, routes := range changes {
		s.Route(routes)
	}
}

// sharedBy are the destinations whose clients come to f by the port that it shares.
func (p *Proxier) sharedBy(f *frontend, vips []vip) iter.Seq[netip.AddrPort] {
	return func(yield func(netip.AddrPort) bool) {
		for _, v := range vips {
			if f.sharesAt(p.listenAddr(f, v.VIP)) && !yield(destination(v)) {
				return
			}
		}
	}
}

// unroute takes away what the plan does not have. It comes when no rule leads there any more.
func (p *Proxier) unroute(plan *plan) {
	wanted := map[*sharedPort]int{}
	for key, vips := range plan.frontends {
		if f := p.frontends[key]; f != nil && f.shared != nil {
			for range p.sharedBy(f, vips) {
				wanted[f.shared]++
			}
		}
	}
	for _, listeners := range p.sharing.open {
		for _, s := range listeners {
			if len(s.routes) == wanted[s] {
				continue // as after most syncs
			}
			needed := map[netip.AddrPort]bool{}
			for key, vips := range plan.frontends {
				if f := p.frontends[key]; f != nil && f.shared == s {
					for to := range p.sharedBy(f, vips) {
						needed[to] = true
					}
				}
			}
			changes := map[netip.AddrPort]*relay.Listener{}
			for to := range s.routes {
				if !needed[to] {
					changes[to] = nil
					delete(s.routes, to)
				}
			}
			s.Route(changes)
		}
	}
}

// destination is what the clients of a VIP dial.
func destination(v vip) netip.AddrPort { return netip.AddrPortFrom(v.Addr, v.Port) }
