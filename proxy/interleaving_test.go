package proxy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"redial/config"
	"redial/proxy/intercept"
)

// world is what exists in a cluster, and can be handed to any Tracker.
type world struct {
	services map[string]*v1.Service
	eps      map[string][]placed
	node     config.Node
}

func (w *world) change(rnd *rand.Rand, tracker *config.Tracker) {
	name := fmt.Sprintf("web-%d", rnd.IntN(4))
	chance := func(n int) bool { return rnd.IntN(n) == 0 }
	switch rnd.IntN(10) {
	case 0:
		w.node = config.Node{
			Name:  []string{"", here, there}[rnd.IntN(3)],
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{198, 18, 200, byte(rnd.IntN(3))})},
		}
		tracker.SetNode(w.node)
	case 1:
		delete(w.services, name)
		tracker.DeleteService(config.ServiceName{Namespace: "default", Name: name})
	case 2, 3, 4:
		s := object(name, "198.18.0."+name[4:], local(chance(2), chance(2)))
		if chance(2) {
			exposed(30000 + int32(name[4]))(s)
		}
		if chance(2) {
			s.Spec.Type = v1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "198.18.1." + name[4:]}}
			if chance(2) {
				s.Spec.LoadBalancerSourceRanges = []string{"198.18.128.0/24"}
			}
		}
		if s.Spec.Type == "" {
			s.Spec.ExternalTrafficPolicy = ""
		}
		w.services[name] = s
		tracker.SetService(s)
	default:
		var eps []placed
		for i := range rnd.IntN(4) {
			// Nobody answers there, and nobody asks.
			addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(10 + i)}), 1)
			eps = append(eps, placed{addr: addr, node: []string{here, there}[rnd.IntN(2)], unready: chance(4), terminating: chance(4)})
		}
		w.eps[name] = eps
		place(tracker, name, eps...)
	}
}

// Whatever happened on the way, and whatever failed: what is in force in the end follows from what exists in the end.
func TestTheEndDoesNotDependOnTheWay(t *testing.T) {
	config := func(c *Config) { c.NodePortAddresses = NodePortAddresses{primary: true} }
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		g := start(t, intercept.PortRange{First: 62000, Last: 62499}, config)
		w := world{services: map[string]*v1.Service{}, eps: map[string][]placed{}}
		for range 60 {
			w.change(rnd, g.tracker)
			switch rnd.IntN(6) {
			case 0:
				g.rec.failWith(func(b []intercept.Binding) error { return fmt.Errorf("no luck with %d bindings", len(b)) })
			case 1:
				g.rec.failWith(nil)
			case 2:
				g.settledIfPossible()
			}
		}
		g.rec.failWith(nil)
		g.settled()

		fresh := start(t, intercept.PortRange{First: 62500, Last: 62999}, config)
		fresh.tracker.SetNode(w.node)
		for name, eps := range w.eps {
			fresh.place(name, eps...)
		}
		for _, s := range w.services {
			fresh.tracker.SetService(s)
		}
		fresh.settled()
		require.Equal(t, fresh.unmarked(), g.unmarked(), "seed %d", seed)
		require.Equal(t, fresh.rec.committed().NodePorts, g.rec.committed().NodePorts)
		require.Equal(t, fresh.serving(), g.serving(), "seed %d", seed)
	}
}

// settledIfPossible waits for the next Commit, which may fail.
func (g *rig) settledIfPossible() {
	if g.SyncStatus().Error == "" && g.rec.count() > 0 {
		g.eventually(func() bool { return g.Health().PendingSince.IsZero() || g.SyncStatus().Error != "" }, "a sync")
	}
}

// serving tells of every frontend which backends it uses.
func (g *rig) serving() []string {
	var out []string
	for _, s := range g.Status().Services {
		for _, p := range s.Ports {
			for _, f := range p.Fronts {
				line := fmt.Sprint(s.Name, f.Family, f.Pool, f.Serving, f.VIPs)
				for _, b := range f.Backends {
					line += fmt.Sprint(" ", b.Address, b.State)
				}
				out = append(out, line)
			}
		}
	}
	return slices.DeleteFunc(out, func(s string) bool { return s[:2] == "zz" })
}
