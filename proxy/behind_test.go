package proxy

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"redial/balancer"
	"redial/config"
)

func TestBehind(t *testing.T) {
	t.Parallel()
	a, b := netip.MustParseAddrPort("198.18.1.1:80"), netip.MustParseAddrPort("198.18.1.2:80")
	endpoints := []config.Endpoint{{Addr: a, Ready: true}, {Addr: b, Ready: true, Weight: config.SetTo[uint16](0)}}
	port := func(s *config.Settings) *config.ServicePort {
		return &config.ServicePort{
			Name: config.ServicePortName{Protocol: config.TCP}, Affinity: time.Hour, Endpoints: endpoints, Settings: s,
		}
	}
	usable := []netip.AddrPort{a, b}

	got := behind(port(nil), usable, "")
	assert.Equal(t, balancer.Config{
		Backends: []balancer.Backend{{Addr: a, Weight: 1}, {Addr: b, Weight: 0}}, Affinity: time.Hour,
		Scheduler: balancer.WeightedRoundRobin, Probe: true,
	}, got, "whoever gives weights means them")
	assert.Equal(t, balancer.LeastConnection, behind(port(nil), usable, balancer.LeastConnection).Scheduler)
	assert.Equal(t, balancer.RoundRobin, behind(port(nil), usable[:1], balancer.RoundRobin).Scheduler, "one weight is no weight")

	asked := &config.Settings{Scheduler: "mh", MaxPerBackend: config.SetTo[int32](7)}
	got = behind(port(asked), usable, balancer.LeastConnection)
	assert.Equal(t, balancer.Maglev, got.Scheduler)
	assert.Equal(t, 7, got.MaxPerBackend)

	udp := port(nil)
	udp.Name.Protocol = config.UDP
	assert.False(t, behind(udp, usable, "").Probe)
}
