package iptables

import (
	"fmt"
	"testing"

	"redial/proxy/intercept"
	"redial/proxy/intercept/intercepttest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			intercepttest.Run(t, intercepttest.Backend{
				New: func(t *testing.T) intercept.Interceptor { return start(t, testConfig(mode)) },
				// Built-in chains come into being by being looked at, and stay.
				Dump: fmt.Sprintf("for t in nat filter; do iptables-%[1]s-save -t $t; ip6tables-%[1]s-save -t $t; done | "+
					`sed 's/\[[0-9:]*\]//' | grep REDIAL || true`, mode),
				Damage: []string{
					fmt.Sprintf("iptables-%s -t nat -F", mode), fmt.Sprintf("ip6tables-%s -t nat -F PREROUTING", mode),
					fmt.Sprintf("iptables-%s -D INPUT 1", mode),
				},
				Harmless: []string{fmt.Sprintf("iptables-%s -A INPUT -p tcp --dport 22 -j ACCEPT", mode)},
				Writes: func(i intercept.Interceptor) int {
					s := i.(*Rules).Stats()
					return s.IPv4.Restores + s.IPv6.Restores
				},
			})
		})
	}
}
