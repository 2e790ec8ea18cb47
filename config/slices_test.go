package config

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

type sliceChange = func(*discoveryv1.EndpointSlice)

func changed(s *discoveryv1.EndpointSlice, changes ...sliceChange) *discoveryv1.EndpointSlice {
	for _, c := range changes {
		c(s)
	}
	return s
}

func TestSlicePorts(t *testing.T) {
	port := func(name *string, p *v1.Protocol, n *int32) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: name, Protocol: p, Port: n}
	}
	n := func(n int32) *int32 { return &n }
	named := func(s *v1.Service) {}
	unnamed := func(s *v1.Service) { s.Spec.Ports[0].Name = "" }
	for _, c := range []struct {
		name     string
		service  func(*v1.Service)
		ports    []discoveryv1.EndpointPort
		port     string
		want     []string
		problems []Problem
	}{
		{"by name, not by targetPort", func(s *v1.Service) { s.Spec.Ports[0].TargetPort.IntVal = 9999 },
			[]discoveryv1.EndpointPort{port(ptr("admin"), nil, n(9999)), port(ptr("http"), nil, n(8080))}, "http", []string{"10.1.0.1:8080"}, nil},
		{"nil name is the empty name", unnamed, []discoveryv1.EndpointPort{port(nil, nil, n(8080))}, "", []string{"10.1.0.1:8080"}, nil},
		{"empty name", unnamed, []discoveryv1.EndpointPort{port(ptr(""), nil, n(8080))}, "", []string{"10.1.0.1:8080"}, nil},
		{"nil protocol is TCP", named, []discoveryv1.EndpointPort{port(ptr("http"), ptr(v1.ProtocolTCP), n(8080))}, "http", []string{"10.1.0.1:8080"}, nil},
		{"nil number", named, []discoveryv1.EndpointPort{port(ptr("http"), nil, nil)}, "http", []string{},
			[]Problem{{"", ReasonInvalidEndpointSet, "EndpointSlice default/web-1: ports[0].port 0"}}},
		{"number 0 and out of range", named, []discoveryv1.EndpointPort{port(ptr("http"), nil, n(0)), port(ptr("x"), nil, n(70000)), port(ptr("http"), nil, n(8081))},
			"http", []string{"10.1.0.1:8081"},
			[]Problem{{"", ReasonInvalidEndpointSet, "ports[0].port 0"}, {"", ReasonInvalidEndpointSet, "ports[1].port 70000"}}},
		{"unknown protocol", named, []discoveryv1.EndpointPort{port(ptr("http"), ptr(v1.Protocol("tcp")), n(80)), port(ptr("http"), nil, n(8080))},
			"http", []string{"10.1.0.1:8080"}, []Problem{{"", ReasonInvalidEndpointSet, "ports[0].protocol"}}},
		{"no ports", named, nil, "http", []string{},
			[]Problem{{"http", ReasonPortNameMismatch, `the Service has "http", its endpoints have none`}}},
		{"another name", named, []discoveryv1.EndpointPort{port(nil, nil, n(8080)), port(ptr("web"), nil, n(8080))}, "http", []string{},
			[]Problem{{"http", ReasonPortNameMismatch, `no endpoint port is named "http" with protocol TCP; the Service has "http", its endpoints have "", "web"`}}},
		{"another protocol", named, []discoveryv1.EndpointPort{port(ptr("http"), ptr(v1.ProtocolUDP), n(8080))}, "http", []string{},
			[]Problem{{"http", ReasonPortNameMismatch, `have "http"/UDP`}}},
		{"two ports of one address", named, []discoveryv1.EndpointPort{port(ptr("http"), nil, n(8081)), port(ptr("http"), nil, n(8080))}, "http",
			[]string{"10.1.0.1:8080", "10.1.0.1:8081"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := merged(newService(c.service), changed(newSlice("web-1", "10.1.0.1"), func(s *discoveryv1.EndpointSlice) { s.Ports = c.ports }))
			require.Equal(t, c.want, eps(t, got, c.port))
			requireProblems(t, got.Problems, c.problems...)
			requireSound(t, got)
		})
	}
}

// A port without endpoints at all is no mismatch: there is nothing to be named.
func TestNoMismatchWithoutEndpoints(t *testing.T) {
	got := merged(newService(), changed(newSlice("web-1"), func(s *discoveryv1.EndpointSlice) { s.Ports = nil }))
	require.Empty(t, got.Problems)
	require.Empty(t, merged(newService()).Problems)
}

func TestMismatchOfOnePortOnly(t *testing.T) {
	got := merged(newService(func(s *v1.Service) { s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "admin", Port: 81}) }),
		newSlice("web-1", "10.1.0.1"))
	require.Equal(t, []string{"10.1.0.1:8080"}, eps(t, got, "http"))
	require.Empty(t, eps(t, got, "admin"))
	requireProblems(t, got.Problems, Problem{"admin", ReasonPortNameMismatch, `the Service has "admin", "http", its endpoints have "http"`})
}

func TestSliceAddresses(t *testing.T) {
	dual := func(s *v1.Service) { s.Spec.ClusterIPs = []string{"10.0.0.1", "fd00::1"} }
	typ := func(a discoveryv1.AddressType) sliceChange {
		return func(s *discoveryv1.EndpointSlice) { s.AddressType = a }
	}
	for _, c := range []struct {
		name     string
		slice    *discoveryv1.EndpointSlice
		want     []string
		problems []Problem
	}{
		{"sorted", newSlice("web-1", "10.1.0.2", "10.1.0.10", "10.1.0.1"), []string{"10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.10:8080"}, nil},
		{"loopback is a process of this machine", newSlice("web-1", "127.0.0.1"), []string{"127.0.0.1:8080"}, nil},
		{"mapped", newSlice("web-1", "::ffff:10.1.0.1"), []string{"10.1.0.1:8080"}, nil},
		{"only the first address", changed(newSlice("web-1"), func(s *discoveryv1.EndpointSlice) {
			s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1", "10.1.0.2"}}}
		}), []string{"10.1.0.1:8080"}, nil},
		{"IPv6", changed(newSlice("web-1", "fd01::1", "::1"), typ("IPv6")), []string{"[::1]:8080", "[fd01::1]:8080"}, nil},
		{"FQDN", changed(newSlice("web-1", "example.org"), typ("FQDN")), []string{},
			[]Problem{{"", ReasonInvalidEndpointSet, "EndpointSlice default/web-1 has addressType FQDN"}}},
		{"no type", changed(newSlice("web-1", "10.1.0.1", "fd01::1"), typ("")), []string{"10.1.0.1:8080", "[fd01::1]:8080"},
			[]Problem{{"", ReasonInvalidEndpointSet, "EndpointSlice default/web-1 has addressType \"\""}}},
		{"one is not of the type", newSlice("web-1", "10.1.0.1", "fd01::1"), []string{"10.1.0.1:8080"},
			[]Problem{{"", ReasonInvalidEndpoint, "endpoints[1].addresses[0] fd01::1 is IPv6 but the addressType is IPv4: the endpoint is left out"}}},
		{"link-local", newSlice("web-1", "169.254.1.1", "10.1.0.1"), []string{"10.1.0.1:8080"},
			[]Problem{{"", ReasonInvalidEndpoint, "endpoints[0].addresses[0] 169.254.1.1 is a link-local address"}}},
		{"many are one problem", changed(newSlice("web-1", "", "0.0.0.0", "224.0.0.1", "255.255.255.255", "x", "10.1.0.1"),
			func(s *discoveryv1.EndpointSlice) {
				s.Endpoints = append([]discoveryv1.Endpoint{{}}, s.Endpoints...)
			}), []string{"10.1.0.1:8080"},
			[]Problem{{"", ReasonInvalidEndpoint, "endpoints[0] has no address: 6 endpoints are left out"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := merged(newService(dual), c.slice)
			require.Equal(t, c.want, eps(t, got, "http"))
			requireProblems(t, got.Problems, c.problems...)
			requireSound(t, got)
		})
	}
	for _, ip := range []string{"0.0.0.0", "224.0.0.1", "255.255.255.255", "x", ""} {
		got := merged(newService(), newSlice("web-1", ip))
		require.Empty(t, eps(t, got, "http"), ip)
		requireProblems(t, got.Problems, Problem{"", ReasonInvalidEndpoint, "endpoints[0].addresses[0]"})
	}
}

func TestEndpointsOfAFamilyTheServiceLacks(t *testing.T) {
	got := merged(newService(), newSlice("web-1", "10.1.0.1"),
		changed(newSlice("web-2", "fd01::2", "fd01::1"), func(s *discoveryv1.EndpointSlice) { s.AddressType = "IPv6" }))
	require.Equal(t, []string{"10.1.0.1:8080"}, eps(t, got, "http"))
	requireProblems(t, got.Problems, Problem{"", ReasonWrongFamily, "2 endpoint addresses, the first fd01::1"})
}

func TestConditions(t *testing.T) {
	yes, no := ptr(true), ptr(false)
	for _, c := range []struct {
		name                        string
		ready, serving, terminating *bool
		want                        Endpoint
	}{
		{"nil", nil, nil, nil, Endpoint{Ready: true, Serving: true}},
		{"ready", yes, yes, no, Endpoint{Ready: true, Serving: true}},
		{"not ready", no, nil, nil, Endpoint{Serving: true}},
		{"terminating", no, yes, yes, Endpoint{Serving: true, Terminating: true}},
		{"dead", no, no, yes, Endpoint{Terminating: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSlice("web-1", "10.1.0.1")
			s.Endpoints[0].NodeName = ptr("node-a")
			s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: c.ready, Serving: c.serving, Terminating: c.terminating}
			c.want.Addr, c.want.At = addrPorts("10.1.0.1:8080")[0], Place{NodeName: "node-a"}.handle()
			require.Equal(t, []Endpoint{c.want}, merged(newService(), s).Ports[0].Endpoints)
		})
	}
}

// One endpoint in several slices is one endpoint, with the best of its states, whichever slice comes first.
func TestDeduplication(t *testing.T) {
	state := func(name string, ready, serving, terminating bool, node string) *discoveryv1.EndpointSlice {
		s := newSlice(name, "10.1.0.1")
		s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
		if node != "" {
			s.Endpoints[0].NodeName = &node
		}
		return s
	}
	// From the best to the worst.
	ranks := []*discoveryv1.EndpointSlice{
		state("a", true, true, false, "node-a"), state("b", true, true, false, "node-b"), state("c", true, true, false, ""),
		state("d", true, true, true, "node-a"), state("e", true, false, false, "node-a"),
		state("f", false, true, false, "node-a"), state("g", false, true, true, "node-a"), state("h", false, false, false, "node-a"),
		state("i", false, false, true, "node-a"),
	}
	for i, better := range ranks {
		for _, worse := range ranks[i+1:] {
			want := merged(newService(), better).Ports[0].Endpoints
			require.Equal(t, want, merged(newService(), better, worse).Ports[0].Endpoints, "%s before %s", better.Name, worse.Name)
			require.Equal(t, want, merged(newService(), worse, better).Ports[0].Endpoints, "%s after %s", better.Name, worse.Name)
		}
	}
}

func TestHints(t *testing.T) {
	zones := func(names ...string) (out []discoveryv1.ForZone) {
		for _, n := range names {
			out = append(out, discoveryv1.ForZone{Name: n})
		}
		return out
	}
	s := newSlice("web-1", "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5")
	s.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: zones("b", "a", "b")}
	s.Endpoints[1].Hints = &discoveryv1.EndpointHints{ForZones: zones("a"), ForNodes: []discoveryv1.ForNode{{Name: "node-a"}}}
	s.Endpoints[2].Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: "node-b"}, {Name: "node-a"}}}
	s.Endpoints[3].Hints = &discoveryv1.EndpointHints{ForZones: zones("")}
	s.Endpoints[4].Zone = ptr("a")
	before := s.DeepCopy()
	got := merged(newService(), s)
	require.Equal(t, before, s)
	var hints [][2]Names
	for _, e := range got.Ports[0].Endpoints {
		hints = append(hints, [2]Names{e.Place().ForZones, e.Place().ForNodes})
	}
	require.Equal(t, [][2]Names{{"a,b", ""}, {"a", "node-a"}, {"", "node-a,node-b"}, {}, {}}, hints,
		"where an endpoint is says nothing of whom it is for")
}

// A hint that changes is a change, one that is written in another order is none.
func TestHintsChange(t *testing.T) {
	tr := delivered()
	tr.SetService(newService())
	set := func(zones ...string) Changes {
		s := newSlice("web-1", "10.1.0.1")
		s.Endpoints[0].Hints = &discoveryv1.EndpointHints{}
		for _, z := range zones {
			s.Endpoints[0].Hints.ForZones = append(s.Endpoints[0].Hints.ForZones, discoveryv1.ForZone{Name: z})
		}
		tr.SetSlice(s)
		return tr.Take()
	}
	require.Equal(t, Names("a"), set("a")[web].Ports[0].Endpoints[0].Place().ForZones)
	require.Equal(t, Names("a,b"), set("a", "b")[web].Ports[0].Endpoints[0].Place().ForZones)
	require.Empty(t, set("b", "a"))
	require.Equal(t, Names(""), set()[web].Ports[0].Endpoints[0].Place().ForZones)
}

// Of two entries for one endpoint the one with hints counts, and a better state counts more. No order of arrival matters.
func TestDeduplicationOfHints(t *testing.T) {
	entry := func(name string, change func(*discoveryv1.Endpoint)) *discoveryv1.EndpointSlice {
		s := newSlice(name, "10.1.0.1")
		change(&s.Endpoints[0])
		return s
	}
	zone := func(name string) *discoveryv1.EndpointHints {
		return &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: name}}}
	}
	node := func(name string) *discoveryv1.EndpointHints {
		return &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: name}}}
	}
	ranks := []*discoveryv1.EndpointSlice{
		entry("a", func(e *discoveryv1.Endpoint) { e.NodeName = ptr("node-a") }),
		entry("b", func(e *discoveryv1.Endpoint) { e.Hints = node("node-a") }),
		entry("c", func(e *discoveryv1.Endpoint) { e.Hints = node("node-b") }),
		entry("d", func(e *discoveryv1.Endpoint) { e.Hints = zone("a") }),
		entry("e", func(e *discoveryv1.Endpoint) { e.Hints = zone("b") }),
		entry("f", func(e *discoveryv1.Endpoint) {}),
		entry("g", func(e *discoveryv1.Endpoint) { e.Conditions.Ready, e.Hints = ptr(false), zone("a") }),
	}
	for i, better := range ranks {
		for _, worse := range ranks[i+1:] {
			want := merged(newService(), better).Ports[0].Endpoints
			require.Equal(t, want, merged(newService(), better, worse).Ports[0].Endpoints, "%s before %s", better.Name, worse.Name)
			require.Equal(t, want, merged(newService(), worse, better).Ports[0].Endpoints, "%s after %s", better.Name, worse.Name)
		}
	}
}

// The label takes a slice away from Service proxies, and gives it back.
func TestHeadlessSlice(t *testing.T) {
	tr := delivered()
	tr.SetService(newService())
	headless := newSlice("web-1", "10.1.0.1")
	headless.Labels[v1.IsHeadlessService] = ""
	tr.SetSlice(headless)
	require.Empty(t, eps(t, tr.Take()[web], "http"))
	tr.SetSlice(newSlice("web-1", "10.1.0.1"))
	require.Equal(t, []string{"10.1.0.1:8080"}, eps(t, tr.Take()[web], "http"))
	tr.SetSlice(headless)
	require.Empty(t, eps(t, tr.Take()[web], "http"))
	tr.DeleteService(web)
	tr.Take()
	require.Empty(t, tr.services)
	require.Empty(t, tr.owners)
}

// Endpoints cost memory by the hundred thousand: translating more of them allocates nothing more than the list.
func TestSliceAllocations(t *testing.T) {
	allocations := func(n int) float64 {
		s := newSlice("web-1")
		for i := range n {
			zone := "zone-" + string(rune('a'+i%3))
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("10.1.0.%d", i)}, NodeName: ptr("node-" + zone),
				Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}, ForNodes: []discoveryv1.ForNode{{Name: "node-" + zone}}},
			})
		}
		return testing.AllocsPerRun(20, func() { translateSlice(s) })
	}
	allocations(3) // the names are new to the process once
	require.InDelta(t, allocations(3), allocations(200), 3)
}

func TestSharedEndpointSurvivesTheDeletionOfOneSlice(t *testing.T) {
	tr := delivered()
	tr.SetService(newService())
	tr.SetSlice(newSlice("web-1", "10.0.0.5", "10.0.0.6"))
	tr.SetSlice(newSlice("web-2", "10.0.0.5"))
	require.Equal(t, []string{"10.0.0.5:8080", "10.0.0.6:8080"}, eps(t, tr.Take()[web], "http"))
	tr.DeleteSlice("default", "web-1")
	require.Equal(t, []string{"10.0.0.5:8080"}, eps(t, tr.Take()[web], "http"))
	tr.SetSlice(newSlice("web-1", "10.0.0.5"))
	require.Empty(t, tr.Take(), "a second copy of what is there changes nothing")
}

// Slices whose ports have one name and different numbers: each address has the number of its own slice.
func TestSlicesWithDifferentNumbers(t *testing.T) {
	got := merged(newService(), newSlice("web-1", "10.1.0.1"),
		changed(newSlice("web-2", "10.1.0.2"), func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = ptr(int32(9090)) }))
	require.Equal(t, []string{"10.1.0.1:8080", "10.1.0.2:9090"}, eps(t, got, "http"))
}

func TestSliceKeepsTheObject(t *testing.T) {
	s := newSlice("web-1", "10.1.0.2", "10.1.0.1", "bad")
	before := s.DeepCopy()
	merged(newService(), s)
	require.Equal(t, before, s)
}
