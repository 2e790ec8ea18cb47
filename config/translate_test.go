package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTranslateWhole(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	got := plain(&v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "dns", CreationTimestamp: metav1.NewTime(created.Local())},
		Spec: v1.ServiceSpec{
			Type:            v1.ServiceTypeLoadBalancer,
			ClusterIP:       "10.0.0.10",
			ClusterIPs:      []string{"10.0.0.10", "fd00::10"},
			IPFamilies:      []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol},
			ExternalIPs:     []string{"192.0.2.1", "::ffff:192.0.2.2", "2001:db8::1"},
			SessionAffinity: v1.ServiceAffinityClientIP,
			Ports: []v1.ServicePort{
				{Name: "dns-tcp", Protocol: v1.ProtocolTCP, Port: 53, NodePort: 30053},
				{Name: "dns", Protocol: v1.ProtocolUDP, Port: 53, NodePort: 30053},
			},
		},
		Status: v1.ServiceStatus{LoadBalancer: v1.LoadBalancerStatus{Ingress: []v1.LoadBalancerIngress{
			{IP: "198.51.100.1"}, {Hostname: "lb.example.org"},
		}}},
	})
	port := func(name string, p Protocol) ServicePort {
		return ServicePort{
			Name:             ServicePortName{ServiceName{"default", "dns"}, name, p},
			Port:             53,
			NodePort:         30053,
			NodePortFamilies: []Family{IPv4, IPv6},
			ClusterIPs:       addrs("10.0.0.10", "fd00::10"),
			ExternalIPs:      addrs("192.0.2.1", "192.0.2.2", "2001:db8::1"),
			LoadBalancerIPs:  addrs("198.51.100.1"),
			Affinity:         3 * time.Hour,
		}
	}
	require.Equal(t, Service{
		Name:       ServiceName{"default", "dns"},
		Created:    created,
		IPFamilies: []Family{IPv4, IPv6},
		Ports:      []ServicePort{port("dns", UDP), port("dns-tcp", TCP)},
	}, got, "TCP and UDP on one number are two ports")
}

func TestTranslateSkips(t *testing.T) {
	label := func(name, value string) func(*v1.Service) {
		return func(s *v1.Service) { s.Labels = map[string]string{name: value} }
	}
	for _, c := range []struct {
		name   string
		change func(*v1.Service)
		want   string
	}{
		{"clusterIP None", func(s *v1.Service) { s.Spec.ClusterIP = "None" }, "headless"},
		{"clusterIPs None", func(s *v1.Service) { s.Spec.ClusterIP = ""; s.Spec.ClusterIPs = []string{"None"} }, "headless"},
		{"None beside an address", func(s *v1.Service) { s.Spec.ClusterIP = "None"; s.Spec.ClusterIPs = []string{"10.0.0.1"} }, "headless"},
		{"no clusterIP", func(s *v1.Service) { s.Spec.ClusterIP = "" }, "set spec.clusterIP"},
		{"ExternalName with clusterIP", func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeExternalName }, "ExternalName"},
		{"another proxy", label(labelServiceProxyName, "other"), `"other"`},
		{"another proxy without a name", label(labelServiceProxyName, ""), labelServiceProxyName},
		{"another proxy and headless", func(s *v1.Service) {
			label(labelServiceProxyName, "other")(s)
			s.Spec.ClusterIP = "None"
		}, `"other"`},
		{"an object without anything", func(s *v1.Service) { *s = v1.Service{} }, "set spec.clusterIP"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := plain(newService(c.change))
			require.Contains(t, got.Skipped, c.want)
			require.Empty(t, got.Ports)
			require.Empty(t, got.Problems)
		})
	}
}

// A proxy with a name serves the Services that name it, and no others.
func TestServiceProxyName(t *testing.T) {
	for _, c := range []struct {
		name, proxy string
		labels      map[string]string
		skipped     string
	}{
		{"no name, no label", "", nil, ""},
		{"no name, label", "", map[string]string{labelServiceProxyName: "x"}, `left to the Service proxy "x"`},
		{"name, no label", "x", map[string]string{"app": "x"}, `only Services with the value "x" are served`},
		{"name and label", "x", map[string]string{labelServiceProxyName: "x"}, ""},
		{"another's", "x", map[string]string{labelServiceProxyName: "y"}, `left to the Service proxy "y"`},
		{"nobody's", "x", map[string]string{labelServiceProxyName: ""}, `left to the Service proxy ""`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := translate(newService(func(s *v1.Service) { s.Labels = c.labels }), Options{ServiceProxyName: c.proxy})
			if c.skipped == "" {
				require.Empty(t, got.Skipped)
				require.Len(t, got.Ports, 1)
			} else {
				require.Contains(t, got.Skipped, c.skipped)
				require.Empty(t, got.Ports)
			}
		})
	}
}

func TestDisableExternalIPs(t *testing.T) {
	svc := newService(func(s *v1.Service) {
		s.Spec.ExternalIPs = []string{"192.0.2.1", "bad"}
		s.Spec.Type = v1.ServiceTypeLoadBalancer
		s.Spec.Ports[0].NodePort = 30080
		s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "198.51.100.1"}}
	})
	got := translate(svc, Options{DisableExternalIPs: true})
	requireProblems(t, got.Problems, Problem{Reason: ReasonExternalIPsDisabled, Message: "192.0.2.1, bad"})
	require.Empty(t, got.Ports[0].ExternalIPs)
	require.Equal(t, addrs("198.51.100.1"), got.Ports[0].LoadBalancerIPs, "only externalIPs can be anybody's")
	require.Equal(t, uint16(30080), got.Ports[0].NodePort)

	require.Empty(t, translate(newService(), Options{DisableExternalIPs: true}).Problems, "there is nothing to ignore")
	requireProblems(t, Check(svc), Problem{Reason: ReasonInvalidAddress, Message: `"bad"`})
}

// What an API server refuses it refuses whichever proxy the Service is for.
func TestCheck(t *testing.T) {
	for name, labels := range map[string]map[string]string{"ours": nil, "a named proxy's": {labelServiceProxyName: "x"}} {
		t.Run(name, func(t *testing.T) {
			svc := newService(func(s *v1.Service) {
				s.Labels = labels
				s.Spec.Type = v1.ServiceTypeLoadBalancer
				s.Spec.ExternalTrafficPolicy = "Nearest"
				s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0", "fd00::/8"}
				s.Spec.HealthCheckNodePort = 70000
				s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.1"}}
			})
			requireProblems(t, Check(svc),
				Problem{Reason: ReasonInvalidSourceRange, Message: "spec.loadBalancerSourceRanges[0]"},
				Problem{Reason: ReasonInvalidField, Message: "spec.healthCheckNodePort"})
		})
	}
}

// A Service that comes to be skipped loses its ports, and gets them back with the endpoints it had.
func TestSkippingToggles(t *testing.T) {
	for name, change := range map[string]func(*v1.Service){
		"label":        func(s *v1.Service) { s.Labels = map[string]string{labelServiceProxyName: "x"} },
		"headless":     func(s *v1.Service) { s.Spec.ClusterIP = "None" },
		"ExternalName": func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeExternalName },
	} {
		t.Run(name, func(t *testing.T) {
			tr := delivered()
			tr.SetService(newService())
			tr.SetSlice(newSlice("web-1", "10.1.0.1"))
			require.Equal(t, []string{"10.1.0.1:8080"}, eps(t, tr.Take()[web], "http"))
			tr.SetService(newService(change))
			got := tr.Take()[web]
			require.NotEmpty(t, got.Skipped)
			require.Empty(t, got.Ports)
			tr.SetService(newService())
			require.Equal(t, []string{"10.1.0.1:8080"}, eps(t, tr.Take()[web], "http"))
		})
	}
}

func TestTranslateAddresses(t *testing.T) {
	one := func(reason, msg string) []Problem { return []Problem{{Reason: reason, Message: msg}} }
	for _, c := range []struct {
		name              string
		change            func(*v1.ServiceSpec)
		families          []Family
		clusterIP, extern []string
		problems          []Problem
	}{
		{name: "single stack", change: func(s *v1.ServiceSpec) {}, families: []Family{IPv4}, clusterIP: []string{"10.0.0.1"}},
		{name: "only clusterIPs", change: func(s *v1.ServiceSpec) { s.ClusterIP = ""; s.ClusterIPs = []string{"fd00::1"} },
			families: []Family{IPv6}, clusterIP: []string{"fd00::1"}},
		{name: "IPv6 first", change: func(s *v1.ServiceSpec) {
			s.ClusterIP, s.ClusterIPs = "fd00::1", []string{"fd00::1", "10.0.0.1"}
			s.IPFamilies = []v1.IPFamily{"IPv6", "IPv4"}
		}, families: []Family{IPv4, IPv6}, clusterIP: []string{"10.0.0.1", "fd00::1"}},
		{name: "families from the addresses", change: func(s *v1.ServiceSpec) { s.ClusterIPs = []string{"10.0.0.1", "fd00::1"} },
			families: []Family{IPv4, IPv6}, clusterIP: []string{"10.0.0.1", "fd00::1"}},
		{name: "mapped", change: func(s *v1.ServiceSpec) { s.ClusterIP = "::ffff:10.0.0.1" },
			families: []Family{IPv4}, clusterIP: []string{"10.0.0.1"}},
		{name: "two of a family", change: func(s *v1.ServiceSpec) { s.ClusterIPs = []string{"10.0.0.1", "10.0.0.2"} },
			families: []Family{IPv4}, clusterIP: []string{"10.0.0.1"}, problems: one(ReasonDuplicateAddress, "10.0.0.2")},
		{name: "contradiction", change: func(s *v1.ServiceSpec) { s.ClusterIPs = []string{"10.0.0.2"} },
			families: []Family{IPv4}, clusterIP: []string{"10.0.0.2"}, problems: one(ReasonInvalidField, "spec.clusterIP \"10.0.0.1\"")},
		{name: "clusterIP of another family", change: func(s *v1.ServiceSpec) {
			s.ClusterIPs = []string{"10.0.0.1", "fd00::1"}
			s.IPFamilies = []v1.IPFamily{"IPv4"}
		}, families: []Family{IPv4}, clusterIP: []string{"10.0.0.1"}, problems: one(ReasonWrongFamily, "spec.clusterIPs[1]")},
		{name: "no address that can be read", change: func(s *v1.ServiceSpec) { s.ClusterIP = "banana" },
			problems: one(ReasonInvalidAddress, `spec.clusterIP "banana"`)},
		{name: "unknown and repeated family", change: func(s *v1.ServiceSpec) { s.IPFamilies = []v1.IPFamily{"IPv5", "IPv4", "IPv4"} },
			families: []Family{IPv4}, clusterIP: []string{"10.0.0.1"}, problems: []Problem{
				{Reason: ReasonInvalidField, Message: "spec.ipFamilies[0]"}, {Reason: ReasonInvalidField, Message: "spec.ipFamilies[2]"}}},
		{name: "IPv6 externalIP on IPv4", change: func(s *v1.ServiceSpec) { s.ExternalIPs = []string{"fd00::1", "192.0.2.1"} },
			families: []Family{IPv4}, clusterIP: []string{"10.0.0.1"}, extern: []string{"192.0.2.1"},
			problems: one(ReasonWrongFamily, "spec.externalIPs[0] fd00::1 is IPv6 but the Service is IPv4 only")},
		{name: "externalIPs nobody can have", change: func(s *v1.ServiceSpec) {
			s.ExternalIPs = []string{"", "0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "010.0.0.1", "fe80::1%eth0",
				"::ffff:127.0.0.1", "192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2/32", " 192.0.2.3"}
		}, families: []Family{IPv4}, clusterIP: []string{"10.0.0.1"}, extern: []string{"192.0.2.1"}, problems: []Problem{
			{Reason: ReasonInvalidAddress, Message: "[0]"}, {Reason: ReasonInvalidAddress, Message: "unspecified"},
			{Reason: ReasonInvalidAddress, Message: "loopback"}, {Reason: ReasonInvalidAddress, Message: "multicast"},
			{Reason: ReasonInvalidAddress, Message: "broadcast"}, {Reason: ReasonInvalidAddress, Message: "[5]"},
			{Reason: ReasonInvalidAddress, Message: "[6]"}, {Reason: ReasonInvalidAddress, Message: "[7]"},
			{Reason: ReasonDuplicateAddress, Message: "[9] 192.0.2.1 repeats spec.externalIPs[8]"},
			{Reason: ReasonInvalidAddress, Message: "[10]"}, {Reason: ReasonInvalidAddress, Message: "[11]"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := newService()
			c.change(&svc.Spec)
			got := plain(svc)
			require.Equal(t, c.families, got.IPFamilies)
			if c.families == nil {
				require.Empty(t, got.Ports)
			} else {
				require.Equal(t, addrs(c.clusterIP...), got.Ports[0].ClusterIPs)
				require.Equal(t, addrs(c.extern...), got.Ports[0].ExternalIPs)
			}
			requireProblems(t, got.Problems, c.problems...)
			requireSound(t, &got)
		})
	}
}

func TestTranslateLoadBalancer(t *testing.T) {
	ingress := func(in ...v1.LoadBalancerIngress) func(*v1.Service) {
		return func(s *v1.Service) {
			s.Spec.Type = v1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = in
		}
	}
	for _, c := range []struct {
		name     string
		changes  []func(*v1.Service)
		want     []string
		problems []Problem
	}{
		{"no mode", []func(*v1.Service){ingress(v1.LoadBalancerIngress{IP: "192.0.2.1"})}, []string{"192.0.2.1"}, nil},
		{"VIP", []func(*v1.Service){ingress(v1.LoadBalancerIngress{IP: "192.0.2.1", IPMode: ptr(v1.LoadBalancerIPModeVIP)})}, []string{"192.0.2.1"}, nil},
		{"Proxy", []func(*v1.Service){ingress(v1.LoadBalancerIngress{IP: "192.0.2.1", IPMode: ptr(v1.LoadBalancerIPModeProxy)})}, nil, nil},
		{"unknown mode", []func(*v1.Service){ingress(v1.LoadBalancerIngress{IP: "192.0.2.1", IPMode: ptr(v1.LoadBalancerIPMode("DSR"))})}, nil,
			[]Problem{{Reason: ReasonInvalidField, Message: "status.loadBalancer.ingress[0].ipMode"}}},
		{"hostname", []func(*v1.Service){ingress(v1.LoadBalancerIngress{Hostname: "lb.example.org"})}, nil, nil},
		{"hostname for an address", []func(*v1.Service){ingress(v1.LoadBalancerIngress{IP: "lb.example.org"})}, nil,
			[]Problem{{Reason: ReasonInvalidAddress, Message: "status.loadBalancer.ingress[0].ip"}}},
		{"another type", []func(*v1.Service){ingress(v1.LoadBalancerIngress{IP: "192.0.2.1"}), func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeNodePort }}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := plain(newService(c.changes...))
			require.Equal(t, addrs(c.want...), got.Ports[0].LoadBalancerIPs)
			require.Equal(t, addrs("10.0.0.1"), got.Ports[0].ClusterIPs, "the rest is served")
			requireProblems(t, got.Problems, c.problems...)
		})
	}
}

func TestTranslateAffinity(t *testing.T) {
	timeout := func(s *int32) *v1.SessionAffinityConfig {
		return &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: s}}
	}
	for _, c := range []struct {
		name     string
		affinity v1.ServiceAffinity
		config   *v1.SessionAffinityConfig
		want     time.Duration
		problem  string
	}{
		{"none", "", nil, 0, ""},
		{"None", "None", timeout(ptr(int32(10))), 0, ""},
		{"nil config", "ClientIP", nil, 3 * time.Hour, ""},
		{"nil client", "ClientIP", &v1.SessionAffinityConfig{}, 3 * time.Hour, ""},
		{"nil timeout", "ClientIP", timeout(nil), 3 * time.Hour, ""},
		{"shortest", "ClientIP", timeout(ptr(int32(1))), time.Second, ""},
		{"longest", "ClientIP", timeout(ptr(int32(86400))), 24 * time.Hour, ""},
		{"zero", "ClientIP", timeout(ptr(int32(0))), 3 * time.Hour, "timeoutSeconds 0"},
		{"negative", "ClientIP", timeout(ptr(int32(-1))), 3 * time.Hour, "timeoutSeconds -1"},
		{"too long", "ClientIP", timeout(ptr(int32(86401))), 3 * time.Hour, "timeoutSeconds 86401"},
		{"unknown", "Cookie", nil, 0, `"Cookie"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := plain(newService(func(s *v1.Service) {
				s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = c.affinity, c.config
			}))
			require.Equal(t, c.want, got.Ports[0].Affinity)
			if c.problem == "" {
				require.Empty(t, got.Problems)
			} else {
				requireProblems(t, got.Problems, Problem{Reason: ReasonInvalidAffinity, Message: c.problem})
			}
		})
	}
}

// Affinity belongs to the Service: neither the order of events nor a time without endpoints changes it.
func TestAffinityOutlivesEndpoints(t *testing.T) {
	tr := delivered()
	tr.SetSlice(newSlice("web-1", "10.1.0.1"))
	require.Empty(t, tr.Take())
	tr.SetService(newService(func(s *v1.Service) {
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: ptr(int32(2))}}
	}))
	require.Equal(t, 2*time.Second, tr.Take()[web].Ports[0].Affinity)
	tr.SetSlice(newSlice("web-1"))
	require.Equal(t, 2*time.Second, tr.Take()[web].Ports[0].Affinity)
	tr.SetSlice(newSlice("web-1", "10.1.0.1"))
	require.Equal(t, 2*time.Second, tr.Take()[web].Ports[0].Affinity)
}

func TestTranslatePorts(t *testing.T) {
	for _, c := range []struct {
		name     string
		typ      v1.ServiceType
		ports    []v1.ServicePort
		want     []string // name port/node port
		problems []Problem
	}{
		{name: "unnamed", ports: []v1.ServicePort{{Port: 80}}, want: []string{"/TCP 80 0"}},
		{name: "none", problems: []Problem{{"", ReasonInvalidPort, "spec.ports"}}},
		{name: "SCTP", ports: []v1.ServicePort{{Name: "s", Protocol: "SCTP", Port: 80}}, want: []string{":s/SCTP 80 0"}},
		{name: "one of several unnamed", ports: []v1.ServicePort{{Port: 80}, {Name: "b", Port: 81}}, want: []string{":b/TCP 81 0"},
			problems: []Problem{{"", ReasonInvalidPort, "spec.ports[0].name"}}},
		{name: "out of range", ports: []v1.ServicePort{{Name: "a", Port: 0}, {Name: "b", Port: 70000}, {Name: "c", Port: -1}, {Name: "d", Port: 65535}},
			want: []string{":d/TCP 65535 0"},
			problems: []Problem{{"a", ReasonInvalidPort, "spec.ports[0].port 0"}, {"b", ReasonInvalidPort, "spec.ports[1].port 70000"},
				{"c", ReasonInvalidPort, "spec.ports[2].port -1"}}},
		{name: "a spoilt port does not take the name", ports: []v1.ServicePort{{Name: "a", Port: 0}, {Name: "a", Port: 80}},
			want: []string{":a/TCP 80 0"}, problems: []Problem{{"a", ReasonInvalidPort, "spec.ports[0].port"}}},
		{name: "duplicate name", ports: []v1.ServicePort{{Name: "a", Port: 80}, {Name: "a", Protocol: "UDP", Port: 81}}, want: []string{":a/TCP 80 0"},
			problems: []Problem{{"a", ReasonDuplicatePort, "spec.ports[1].name"}}},
		{name: "duplicate number", ports: []v1.ServicePort{{Name: "b", Port: 80}, {Name: "a", Protocol: "TCP", Port: 80}}, want: []string{":b/TCP 80 0"},
			problems: []Problem{{"a", ReasonDuplicatePort, "spec.ports[1].port"}}},
		{name: "protocol", ports: []v1.ServicePort{{Name: "a", Protocol: "tcp", Port: 80}, {Name: "b", Port: 81}}, want: []string{":b/TCP 81 0"},
			problems: []Problem{{"a", ReasonInvalidPort, "spec.ports[0].protocol"}}},
		{name: "name no rule or log could carry", ports: []v1.ServicePort{{Name: "a\n-j DROP", Port: 80}, {Name: "b", Port: 81}}, want: []string{":b/TCP 81 0"},
			problems: []Problem{{"", ReasonInvalidPort, "spec.ports[0].name"}}},
		{name: "sorted", ports: []v1.ServicePort{{Name: "b", Port: 80}, {Name: "a", Port: 81}}, want: []string{":a/TCP 81 0", ":b/TCP 80 0"}},
		{name: "node ports", typ: "NodePort", ports: []v1.ServicePort{{Name: "a", Port: 53, NodePort: 30053}, {Name: "b", Protocol: "UDP", Port: 53, NodePort: 30053}, {Name: "c", Port: 54}},
			want: []string{":a/TCP 53 30053", ":b/UDP 53 30053", ":c/TCP 54 0"}},
		{name: "node port on ClusterIP", ports: []v1.ServicePort{{Port: 80, NodePort: 30080}}, want: []string{"/TCP 80 0"},
			problems: []Problem{{"", ReasonInvalidNodePort, "spec.ports[0].nodePort"}}},
		{name: "node port out of range", typ: "LoadBalancer", ports: []v1.ServicePort{{Name: "a", Port: 80, NodePort: 70000}, {Name: "b", Port: 81, NodePort: -5}},
			want:     []string{":a/TCP 80 0", ":b/TCP 81 0"},
			problems: []Problem{{"a", ReasonInvalidNodePort, "spec.ports[0].nodePort"}, {"b", ReasonInvalidNodePort, "spec.ports[1].nodePort"}}},
		{name: "node port twice", typ: "NodePort", ports: []v1.ServicePort{{Name: "a", Port: 80, NodePort: 30080}, {Name: "b", Port: 81, NodePort: 30080}},
			want: []string{":a/TCP 80 30080", ":b/TCP 81 0"}, problems: []Problem{{"b", ReasonInvalidNodePort, "spec.ports[1].nodePort"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := plain(newService(func(s *v1.Service) { s.Spec.Type, s.Spec.Ports = c.typ, c.ports }))
			var ports []string
			for _, p := range got.Ports {
				ports = append(ports, p.Name.String()[len("default/web"):]+" "+itoa(p.Port)+" "+itoa(p.NodePort))
			}
			require.Equal(t, c.want, ports)
			requireProblems(t, got.Problems, c.problems...)
			requireSound(t, &got)
		})
	}
}

// Two Services may claim one node port: that is for the proxy to settle, which alone sees both.
func TestNodePortOfTwoServices(t *testing.T) {
	for _, name := range []string{"a", "b"} {
		got := plain(newService(func(s *v1.Service) {
			s.Name, s.Spec.Type, s.Spec.Ports[0].NodePort = name, v1.ServiceTypeNodePort, 30080
		}))
		require.Equal(t, uint16(30080), got.Ports[0].NodePort)
		require.Empty(t, got.Problems)
	}
}

func TestTranslateKeepsTheObject(t *testing.T) {
	svc := newService(func(s *v1.Service) {
		s.Spec.ClusterIPs = []string{"", "10.0.0.1", "None"}
		s.Spec.ExternalIPs = []string{"192.0.2.2", "192.0.2.1"}
		s.Spec.Ports = []v1.ServicePort{{Name: "b", Port: 2}, {Name: "a", Port: 1}}
	})
	before := svc.DeepCopy()
	plain(svc)
	require.Equal(t, before, svc)
}
