package local

import (
	"io"
	"net/netip"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept"
	"redial/proxy/intercept/intercepttest"
)

func testConfig(cidrs ...string) Config {
	log := logrus.New()
	log.SetOutput(io.Discard)
	c := Config{Log: logrus.NewEntry(log)}
	var list []netip.Prefix
	for _, s := range cidrs {
		list = append(list, netip.MustParsePrefix(s))
	}
	c.ServiceCIDRs = func() []netip.Prefix { return list }
	return c
}

func start(t *testing.T, cfg Config) *Routes {
	t.Helper()
	r, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { r.Close() })
	return r
}

// dump is everything that could show a trace: addresses, links and all routes of all tables, but for those that the kernel
// writes by itself, some time after the addresses.
const dump = "{ ip -o addr; ip -o link | sed 's/state .*//'; ip -4 route show table all; ip -6 route show table all; ip rule; } | grep -v 'fe80::\\|proto kernel'"

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		cidrs  []string
		shared bool
	}{
		"single":       {},
		"service CIDR": {cidrs: []string{"198.18.100.0/24", "2001:db8:100::/108"}},
		"shared":       {shared: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			damage := []string{
				"ip route flush table local proto 214",
				"ip -6 route flush table local proto 214",
				"ip route del local 198.18.110.5 table local proto 214",
				"ip -6 route del local 2001:db8:120::6 table local proto 214",
				"ip route replace local 198.18.110.5 dev lo table local proto 214 metric 1024 src 198.18.1.1",
				"ip route add local 198.18.99.9 dev lo table local proto 214 metric 1024",
				"ip -6 route add local 2001:db8:99::9 dev lo table local proto 214 metric 5",
				"ip route add local 192.0.2.1 dev lo table 5391436 proto 214 metric 1024", // as a probe that was killed leaves it
				"ip link set lo down; ip link set lo up",
			}
			intercepttest.Run(t, intercepttest.Backend{
				New: func(t *testing.T) intercept.Interceptor {
					r := start(t, testConfig(of.cidrs...))
					if of.shared {
						needsSharing(t, r)
					}
					return r
				},
				Dump:   dump,
				Damage: damage,
				Shared: of.shared,
				Harmless: []string{
					"ip route add 198.18.99.9 dev lo proto 214", "ip route del 198.18.99.9 dev lo proto 214",
					"ip -6 route add local 2001:db8:99::9 dev lo table 77 proto 214 metric 5", "ip -6 route flush table 77",
					"ip route add 198.18.99.0/24 dev to-pod", "ip route del 198.18.99.0/24 dev to-pod",
					"ip addr add 198.18.1.9/24 dev to-pod; ip addr del 198.18.1.9/24 dev to-pod",
					"ip route add local 198.18.98.9 dev lo table local; ip route del local 198.18.98.9 dev lo table local",
				},
				Writes: func(i intercept.Interceptor) int {
					s := i.(*Routes).Stats()
					return s.IPv4.Added + s.IPv4.Removed + s.IPv4.Assigned + s.IPv6.Added + s.IPv6.Removed + s.IPv6.Assigned
				},
				ListenControl: ListenControl(0x2000),
			})
		})
	}
}
