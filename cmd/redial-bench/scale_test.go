package main

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestServicesHaveAddressesOfTheirOwn(t *testing.T) {
	services, endpoints := netip.MustParsePrefix(serviceRange), netip.MustParsePrefix(endpointRange)
	seen := map[netip.AddrPort]int{}
	for service := range mostServices {
		vip := vipOf(service)
		if !services.Contains(vip.Addr()) {
			t.Fatalf("Service %d has %s", service, vip)
		}
		for generation := range 3 {
			for _, e := range append(endpointsSlice(service, generation), vip) {
				if owner, taken := seen[e]; taken && owner != service {
					t.Fatalf("%s is of %d and %d", e, owner, service)
				}
				seen[e] = service
				if e != vip && !endpoints.Contains(e.Addr()) {
					t.Fatalf("Service %d has an endpoint %s", service, e)
				}
			}
		}
	}
	for _, in := range []string{nodeIP, clientIP, backendIP, "198.18.255.2"} {
		_, taken := seen[netip.AddrPortFrom(netip.MustParseAddr(in), scalePort)]
		assert.False(t, taken, in)
	}
}

func endpointsSlice(service, generation int) []netip.AddrPort {
	e := endpointsOf(service, generation)
	return e[:]
}

// An answer's port tells the generation, and a scale-peer listens there.
func TestGenerationsOfEndpointsDiffer(t *testing.T) {
	for _, service := range []int{0, 16383, 16384, mostServices - 1} {
		ports := map[uint16]bool{}
		for generation := range 2 {
			for _, e := range endpointsOf(service, generation) {
				assert.Equal(t, endpointsOf(service, generation)[0].Port(), e.Port())
				assert.GreaterOrEqual(t, int(e.Port()), endpointPorts)
				assert.Less(t, int(e.Port()), endpointPorts+endpointPortCount)
			}
			ports[endpointsOf(service, generation)[0].Port()] = true
		}
		assert.Len(t, ports, 2, "Service %d", service)
	}
}

func TestSumOfSamples(t *testing.T) {
	m, err := parseSamples(strings.NewReader(`# HELP a_total What it is.
# TYPE a_total counter
a_total{ip_family="IPv4",program="save"} 1.5
a_total{ip_family="IPv6",program="save"} 2
a_total{ip_family="IPv6",program="restore"} 1e+06
a_total_of_others 7
plain 1.7e+09
`))
	require.NoError(t, err)
	assert.EqualValues(t, 3.5, m.sum("a_total", "save"))
	assert.EqualValues(t, 1000003.5, m.sum("a_total"))
	assert.EqualValues(t, 2, m.sum("a_total", "save", "IPv6"))
	assert.EqualValues(t, 1.7e9, m.sum("plain"))
	assert.Zero(t, m.sum("none"))
	_, err = parseSamples(strings.NewReader("plain x\n"))
	assert.Error(t, err)
}

func TestScaleTables(t *testing.T) {
	few := &scaleSeries{System: "a", Services: 1, Samples: []*scaleSample{{
		Start: phases{Total: time.Second}, Added: []time.Duration{3 * time.Millisecond}, ConnectP50: 10 * time.Microsecond, WholeP50: 100 * time.Microsecond,
	}}}
	many := &scaleSeries{System: "a", Services: 1000, Samples: []*scaleSample{{
		Start: phases{Total: 2 * time.Second, Own: 500 * time.Millisecond}, ConnectP50: 12 * time.Microsecond, WholeP50: 101 * time.Microsecond,
		Idle: use{CPU: 0.0025, Resident: 64 << 20},
	}}}
	text := scaleTables([]*scaleSeries{few, many})
	for _, want := range []string{"1.00 (1.00-1.00)", "0.50 (0.50-0.50)", "3.0 (3.0-3.0)", "0.25 (0.25-0.25)", "64 (64-64)"} {
		assert.Contains(t, text, want)
	}
	flat := flatnessTable([]*scaleSeries{few, many}).String()
	assert.Contains(t, flat, "1.20x")
	assert.Contains(t, flat, "1.01x")
	assert.Equal(t, 3, strings.Count(flat, "\n"), "the first number of Services is what the others are compared with:\n%s", flat)
}
