package proxy

import (
	"net/netip"
	"slices"

	"redial/balancer"
	"redial/config"
)

// behind is what a frontend's balancer is to know of a port with these usable endpoints. scheduler is the one of ports that
// ask for none.
func behind(port *config.ServicePort, usable []netip.AddrPort, scheduler balancer.Scheduler) balancer.Config {
	asked := port.Settings.Value()
	c := balancer.Config{
		Backends:      make([]balancer.Backend, len(usable)),
		Affinity:      port.Affinity,
		Scheduler:     scheduler,
		MaxPerBackend: int(asked.MaxPerBackend.Or(0)),
		Probe:         port.Name.Protocol != config.UDP, // connecting to a UDP backend tells nothing
	}
	for i, addr := range usable {
		weight := weightOf(port.Endpoints, addr)
		c.Backends[i] = balancer.Backend{Addr: addr, Weight: weight}
	}
	if asked.Scheduler != "" {
		c.Scheduler = balancer.Scheduler(asked.Scheduler)
	} else if unequal(c.Backends) && (scheduler == "" || scheduler == balancer.RoundRobin) {
		c.Scheduler = balancer.WeightedRoundRobin // whoever gives weights means them
	}
	return c
}

// weightOf is the weight of an endpoint; endpoints are sorted by address.
func weightOf(endpoints []config.Endpoint, addr netip.AddrPort) int {
	i, found := slices.BinarySearchFunc(endpoints, addr, func(e config.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	if !found {
		return 1
	}
	return int(endpoints[i].Weight.Or(1))
}

func unequal(backends []balancer.Backend) bool {
	return slices.ContainsFunc(backends, func(b balancer.Backend) bool { return b.Weight != backends[0].Weight })
}
