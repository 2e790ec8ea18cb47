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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/config"
	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
	"redial/proxy/relay"
)

// remembering is an Interceptor that steers nothing. It may fail, with one binding or with all.
type remembering struct {
	intercept.None
	last   []intercept.Binding
	fails  bool
	refuse intercept.VIP
}

func (r *remembering) Commit(_ context.Context, want intercept.State) error {
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
	s := &config.Service{Name: config.ServiceName{Namespace: "default", Name: fmt.Sprint(i)}}
	for n := range 1 + rnd.IntN(2) {
		protocol := []config.Protocol{config.TCP, config.TCP, config.UDP}[rnd.IntN(3)]
		port := config.ServicePort{
			Name: config.ServicePortName{Service: s.Name, Port: fmt.Sprint("p", n), Protocol: protocol},
			Port: 80 + uint16(n), ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{198, 18, 0, byte(i)})},
			InternalLocal: chance(3), ExternalLocal: chance(3),
		}
		if chance(3) {
			port.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{198, 18, 1, byte(rnd.IntN(60))})}
		}
		if chance(3) {
			port.NodePort, port.NodePortFamilies = 30000+uint16(i*2+n), []config.Family{config.IPv4}
		}
		if chance(40) {
			port.Name.Protocol = config.SCTP
		}
		for e := range rnd.IntN(3) {
			port.Endpoints = append(port.Endpoints, config.Endpoint{
				Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(10 + e)}), 1), Ready: true, Serving: true,
			})
		}
		s.Ports = append(s.Ports, port)
	}
	return s
}

// Whatever changes, and whatever fails: a sync for some Services leaves behind what one for all would.
func TestAmendedIsLikeWhole(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, _ *lab.Host) {
		amended := 0
		for seed := range uint64(12) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			rules := &remembering{}
			p := still(t, intercept.PortRange{First: 62000, Last: 62039}, 1<<20)
			p.cfg.Interceptor = rules
			refused := false
			for range 120 {
				for range 1 + rnd.IntN(4) {
					i := rnd.IntN(40)
					name := config.ServiceName{Namespace: "default", Name: fmt.Sprint(i)}
					if rnd.IntN(3) == 0 {
						p.takeService(name, nil)
					} else {
						p.takeService(name, anyService(rnd, i))
					}
				}
				rules.fails = rnd.IntN(12) == 0
				rules.refuse = intercept.VIP{}
				if len(rules.last) > 0 && rnd.IntN(12) == 0 {
					rules.refuse = rules.last[rnd.IntN(len(rules.last))].VIP
				}
				full, err := p.reconcile(t.Context())
				p.full = p.full || err != nil // as step does
				require.Equal(t, rules.fails, err != nil)
				if !full {
					amended++
					require.False(t, refused, "what may be solved by another Service's change")
				}
				refused = rules.refuse != intercept.VIP{} && slices.ContainsFunc(rules.last, func(b intercept.Binding) bool { return b.VIP == rules.refuse })
				if err == nil {
					requireWhole(t, p, rules)
				}
			}
			p.cfg.Relay.Shutdown(t.Context())
		}
		assert.Greater(t, amended, 100, "most syncs are for some only")
	})
}

// requireWhole compares p with what a plan for everything comes to.
func requireWhole(t *testing.T, p *Proxier, rules *remembering) {
	t.Helper()
	whole := buildPlan(p.wanted, p.owners)
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
