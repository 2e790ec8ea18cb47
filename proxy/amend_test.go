package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"unique"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/config"
	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
	routes "redial/proxy/intercept/local"
	"redial/proxy/relay"
)

// remembering is an Interceptor that steers nothing. It may fail, with one binding or with all.
type remembering struct {
	intercept.None
	limits intercept.Limits // of IPv4
	onVIPs bool             // those of IPv6 are listened on
	last   []intercept.Binding
	fails  bool
	refuse intercept.VIP
	during func() // Prepare and Commit; may be nil
}

func (r *remembering) Limits(v6 bool) intercept.Limits {
	if v6 && r.onVIPs {
		return intercept.Limits{ClientsAlike: true, OwnListeners: true, Refuses: true}
	}
	return r.limits
}

func (r *remembering) BindAddr(v intercept.VIP, port uint16) netip.AddrPort {
	if v.Addr.Is6() && r.onVIPs {
		return netip.AddrPortFrom(v.Addr, v.Port)
	}
	return r.None.BindAddr(v, port)
}

func (r *remembering) Prepare(context.Context, []intercept.VIP) error {
	if r.during != nil {
		r.during()
	}
	return nil
}

func (r *remembering) Commit(_ context.Context, want intercept.State) error {
	if r.during != nil {
		r.during()
	}
	if r.fails {
		return errors.New("no")
	}
	r.last = want.Bindings
	for _, b := range want.Bindings {
		if b.VIP == r.refuse {
			return &intercept.BindingError{Binding: b, Err: errors.New("not this one")}
		}
	}
	return nil
}

// anyService is one of few, which contend for addresses now and then.
func anyService(rnd *rand.Rand, i int) *config.Service {
	chance := func(n int) bool { return rnd.IntN(n) == 0 }
	four := func(net byte, i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, net, byte(i)}) }
	six := func(net byte, i int) netip.Addr {
		return netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8, 14: net, 15: byte(i)})
	}
	s := &config.Service{Name: config.ServiceName{Namespace: "default", Name: fmt.Sprint(i)}}
	first := rnd.IntN(2)
	for n := range 1 + rnd.IntN(2) {
		protocol := []config.Protocol{config.TCP, config.TCP, config.TCP, config.UDP}[rnd.IntN(4)]
		port := config.ServicePort{
			Name: config.ServicePortName{Service: s.Name, Port: fmt.Sprint("p", first+n), Protocol: protocol},
			Port: 80 + uint16(n), ClusterIPs: []netip.Addr{four(0, i), six(0, i)}[:1+rnd.IntN(2)],
			InternalLocal: chance(3), ExternalLocal: chance(3),
		}
		if chance(3) {
			port.ExternalIPs = []netip.Addr{four(1, rnd.IntN(200))}
		}
		if chance(3) {
			port.LoadBalancerIPs = []netip.Addr{six(1, rnd.IntN(200))}
			if chance(2) {
				port.SourceRanges = []netip.Prefix{netip.MustParsePrefix("2001:db8::/64")}
			}
		}
		if chance(3) {
			port.NodePort, port.NodePortFamilies = 30000+uint16(i*2+n), config.Families[:1+rnd.IntN(2)]
		}
		if chance(40) {
			port.Name.Protocol = config.SCTP
		}
		port.Endpoints = anyEndpoints(rnd)
		s.Ports = append(s.Ports, port)
	}
	return s
}

var anyPlaces = []unique.Handle[config.Place]{{}, unique.Make(config.Place{NodeName: here}), unique.Make(config.Place{NodeName: there})}

func anyEndpoints(rnd *rand.Rand) (list []config.Endpoint) {
	for _, addr := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 10}), netip.IPv6Loopback()} {
		for e := range rnd.IntN(3) {
			list = append(list, config.Endpoint{
				Addr: netip.AddrPortFrom(addr, uint16(1+e)), Ready: true, Serving: true, At: anyPlaces[rnd.IntN(3)],
			})
		}
	}
	return list
}

// anyChange is one of a Service, or of endpoints alone.
func (p *Proxier) anyChange(rnd *rand.Rand) {
	name := config.ServiceName{Namespace: "default", Name: fmt.Sprint(rnd.IntN(40))}
	var number int
	fmt.Sscan(name.Name, &number)
	old := p.wanted[name]
	switch n := rnd.IntN(6); {
	case n < 2:
		p.takeService(name, nil)
	case n < 4 && old != nil:
		s := *old
		s.Ports = slices.Clone(s.Ports)
		for i := range s.Ports {
			s.Ports[i].Endpoints = anyEndpoints(rnd)
		}
		p.takeService(name, &s)
	default:
		p.takeService(name, anyService(rnd, number))
	}
}

// Whatever changes, and whatever fails: a sync for some Services leaves behind what one for all would.
func TestAmendedIsLikeWhole(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, _ *lab.Host) {
		amended := 0
		for seed := range uint64(12) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			rules := &remembering{limits: intercept.Limits{Refuses: seed%4 == 0}, onVIPs: seed%3 == 0}
			p := still(t, intercept.PortRange{First: 62000, Last: 62033}, 1<<20)
			if rules.onVIPs {
				p.cfg.Relay.Shutdown(t.Context())
				p.cfg.Relay = relay.New(relay.Config{MaxFDs: 1 << 20, ListenControl: routes.ListenControl(0)})
			}
			p.cfg.Interceptor = rules
			p.sharing = newSharing(&p.cfg)
			p.take(config.Changes{}, config.Node{Name: here})
			refused := false
			sync := func() {
				full, err := p.reconcile(t.Context())
				p.full = p.full || err != nil // as step does
				require.Equal(t, rules.fails, err != nil)
				if !full {
					amended++
					require.False(t, refused, "what may be solved by another Service's change")
				}
				refused = rules.refuse != intercept.VIP{} && slices.ContainsFunc(rules.last, func(b intercept.Binding) bool { return b.VIP == rules.refuse })
			}
			for range 120 {
				for range 1 + rnd.IntN(4) {
					p.anyChange(rnd)
				}
				if rnd.IntN(30) == 0 {
					p.take(config.Changes{}, config.Node{Name: []string{here, there}[rnd.IntN(2)]})
				}
				rules.fails = rnd.IntN(12) == 0
				rules.refuse = intercept.VIP{}
				if len(rules.last) > 0 && rnd.IntN(12) == 0 {
					rules.refuse = rules.last[rnd.IntN(len(rules.last))].VIP
				}
				if rnd.IntN(3) == 0 {
					rules.during = func() {
						p.mu.Lock()
						defer p.mu.Unlock()
						for range 1 + rnd.IntN(2) {
							p.anyChange(rnd)
						}
					}
				}
				sync()
				if rules.during != nil {
					rules.during = nil
					sync()
				}
				if rules.fails {
					continue
				}
				requireWhole(t, p, rules)
				if rules.refuse == (intercept.VIP{}) && rnd.IntN(4) == 0 {
					before := rules.last
					p.full = true
					sync()
					require.Equal(t, rules.last, before)
					requireWhole(t, p, rules)
				}
			}
			p.cfg.Relay.Shutdown(t.Context())
		}
		assert.Greater(t, amended, 500, "most syncs are for some only")
	})
}

// requireWhole compares p with what a plan for everything comes to.
func requireWhole(t *testing.T, p *Proxier, rules *remembering) {
	t.Helper()
	whole := p.planOf(p.wanted)
	if rules.refuse == (intercept.VIP{}) {
		require.Equal(t, whole.owners, p.owners)
		require.Equal(t, p.bindings(&whole), rules.last)
		for name, list := range whole.problems {
			require.ElementsMatch(t, list, p.problems[name])
		}
		require.Len(t, p.problems, len(whole.problems))
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(whole.frontends)), slices.Collect(maps.Keys(p.frontends)))
	routed := map[*sharedPort]map[netip.AddrPort]*relay.Listener{}
	for key, vips := range whole.frontends {
		f := p.frontends[key]
		require.Equal(t, f.drops, f.dropped, "%v", key)
		require.Nil(t, f.broken)
		usable := config.Usable(p.servicePort(key.name).Endpoints, key.family, key.pool, p.node)
		require.Equal(t, len(usable) > 0, f.open, "%v", key)
		require.Equal(t, len(usable), f.balancer.Len(), "%v", key)
		if rules.refuse == (intercept.VIP{}) {
			require.ElementsMatch(t, vips, f.vips, "%v", key)
		}
		if f.shared == nil {
			continue
		}
		for _, v := range f.vips {
			if routed[f.shared] == nil {
				routed[f.shared] = map[netip.AddrPort]*relay.Listener{}
			}
			routed[f.shared][destination(v)] = f.listeners[0].listener.(*relay.Listener)
		}
	}
	if rules.refuse == (intercept.VIP{}) {
		for _, listeners := range p.sharing.open {
			for _, s := range listeners {
				require.Len(t, s.routes, len(routed[s]))
				for to, l := range routed[s] {
					require.Same(t, l, s.routes[to])
				}
			}
		}
	}
}
