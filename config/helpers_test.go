package config

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func ptr[T any](v T) *T { return &v }

func addrs(s ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func addrPorts(s ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range s {
		out = append(out, netip.MustParseAddrPort(a))
	}
	return out
}

// newService is default/web at 10.0.0.1:80 with one port named http.
func newService(change ...func(*v1.Service)) *v1.Service {
	svc := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: v1.ServiceSpec{
			ClusterIP: "10.0.0.1",
			Ports:     []v1.ServicePort{{Name: "http", Port: 80}},
		},
	}
	for _, c := range change {
		c(svc)
	}
	return svc
}

// newSlice has one port http 8080 and belongs to default/web.
func newSlice(name string, ips ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8080))}},
	}
	for _, ip := range ips {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}})
	}
	return s
}

var web = ServiceName{"default", "web"}

// delivered is a Tracker that may be taken from.
func delivered() *Tracker {
	t := NewTracker(Options{})
	t.ServicesDelivered()
	t.EndpointsDelivered()
	t.Take()
	return t
}

// merged is what default/web becomes with the slices.
func merged(svc *v1.Service, slices ...*discoveryv1.EndpointSlice) *Service {
	t := delivered()
	t.SetService(svc)
	for _, s := range slices {
		t.SetSlice(s)
	}
	return t.Take()[web]
}

// eps are the addresses of the endpoints of the Service's port.
func eps(t *testing.T, svc *Service, port string) []string {
	t.Helper()
	require.NotNil(t, svc)
	i := slices.IndexFunc(svc.Ports, func(p ServicePort) bool { return p.Name.Port == port })
	require.GreaterOrEqual(t, i, 0, "no port %q", port)
	out := []string{}
	for _, e := range svc.Ports[i].Endpoints {
		out = append(out, e.Addr.String())
	}
	return out
}

// requireProblems checks that there is exactly one problem for each want, in order, and that it contains the text.
func requireProblems(t *testing.T, got []Problem, want ...Problem) {
	t.Helper()
	require.Len(t, got, len(want), "%v", got)
	for i := range want {
		require.Equal(t, want[i].Reason, got[i].Reason, got[i].Message)
		require.Equal(t, want[i].Port, got[i].Port, got[i].Message)
		require.Contains(t, got[i].Message, want[i].Message)
	}
}

// requireSound checks what must hold for every Service ever handed out, whatever the objects were.
func requireSound(t *testing.T, svc *Service) {
	t.Helper()
	require.True(t, slices.IsSortedFunc(svc.Ports, func(a, b ServicePort) int { return a.Name.Compare(b.Name) }))
	if svc.Skipped != "" {
		require.Empty(t, svc.Ports)
	}
	type number struct {
		n uint16
		p Protocol
	}
	names, numbers, nodePorts := map[string]bool{}, map[number]bool{}, map[number]bool{}
	for _, p := range svc.Ports {
		require.Equal(t, svc.Name, p.Name.Service)
		require.Contains(t, []Protocol{TCP, UDP, SCTP}, p.Name.Protocol)
		require.NotZero(t, p.Port)
		require.False(t, names[p.Name.Port], "port name %q twice", p.Name.Port)
		names[p.Name.Port] = true
		require.False(t, numbers[number{p.Port, p.Name.Protocol}], "port %d twice", p.Port)
		numbers[number{p.Port, p.Name.Protocol}] = true
		if p.NodePort != 0 {
			require.False(t, nodePorts[number{p.NodePort, p.Name.Protocol}], "node port %d twice", p.NodePort)
			nodePorts[number{p.NodePort, p.Name.Protocol}] = true
			require.NotEmpty(t, p.NodePortFamilies)
		}
		require.LessOrEqual(t, len(p.ClusterIPs), 2)
		for _, list := range [][]netip.Addr{p.ClusterIPs, p.ExternalIPs, p.LoadBalancerIPs} {
			seen := map[netip.Addr]bool{}
			for _, a := range list {
				require.True(t, a.IsValid() && a == a.Unmap() && a.Zone() == "", "%v", a)
				require.False(t, a.IsUnspecified() || a.IsMulticast() || a.IsLoopback(), "%v", a)
				require.Contains(t, svc.IPFamilies, FamilyOf(a))
				require.False(t, seen[a], "%v twice", a)
				seen[a] = true
			}
		}
		require.Equal(t, svc.Ports[0].InternalLocal, p.InternalLocal)
		require.Equal(t, svc.Ports[0].ExternalLocal, p.ExternalLocal)
		requireSoundRanges(t, svc.IPFamilies, p)
		require.Same(t, svc.Ports[0].Settings, p.Settings, "ports share the settings")
		requireSoundSettings(t, p.Settings)
		require.True(t, p.Affinity == 0 || p.Affinity >= 1e9 && p.Affinity <= 86400e9)
		for i, e := range p.Endpoints {
			a := e.Addr.Addr()
			require.True(t, e.Addr.IsValid() && e.Addr.Port() != 0 && a == a.Unmap() && a.Zone() == "", "%v", e)
			require.False(t, a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast(), "%v", a)
			require.Contains(t, svc.IPFamilies, FamilyOf(a))
			require.NotEqual(t, SetTo[uint16](1), e.Weight, "a weight has one spelling")
			for _, names := range []Names{e.Place().ForZones, e.Place().ForNodes} {
				require.Equal(t, names, NamesOf(strings.Split(string(names), ",")...))
			}
			require.True(t, i == 0 || p.Endpoints[i-1].Addr.Compare(e.Addr) < 0, "endpoints unsorted or repeated")
		}
	}
	for _, p := range svc.Problems {
		require.NotEmpty(t, p.Reason)
		require.NotEmpty(t, p.Message)
	}
	if svc.HealthCheckNodePort != 0 {
		require.NotEmpty(t, svc.Ports)
		require.True(t, svc.Ports[0].ExternalLocal)
	}
}

// requireSoundRanges checks that the ranges are canonical, and that no address is open in another role.
func requireSoundRanges(t *testing.T, families []Family, p ServicePort) {
	t.Helper()
	if p.SourceRanges == nil {
		return
	}
	for i, r := range p.SourceRanges {
		require.True(t, r.IsValid() && r == r.Masked() && !r.Addr().Is4In6(), "%v", r)
		require.Contains(t, families, FamilyOf(r.Addr()))
		require.True(t, i == 0 || p.SourceRanges[i-1].Compare(r) < 0, "ranges unsorted or repeated")
	}
	for _, a := range p.LoadBalancerIPs {
		require.NotContains(t, p.ExternalIPs, a)
	}
}

// requireSoundSettings checks that nobody who applies settings has to check them again.
func requireSoundSettings(t *testing.T, s *Settings) {
	t.Helper()
	if s == nil {
		return
	}
	require.NotEqual(t, Settings{}, *s, "nothing asked for has one spelling")
	require.Contains(t, append([]string{""}, Schedulers...), s.Scheduler)
	require.LessOrEqual(t, s.ProxyProtocol, uint8(2))
	const month = 720 * time.Hour
	for _, d := range []Setting[time.Duration]{s.DialTimeout, s.UDPTimeout, s.QueueTimeout} {
		require.True(t, d.Or(1) > 0 && d.Or(1) <= 24*time.Hour, "%v", d)
	}
	for _, d := range []Setting[time.Duration]{s.Hedge, s.IdleTimeout, s.MaxConnectionAge, s.DrainTimeout} {
		require.True(t, d.Or(0) >= 0 && d.Or(0) <= month, "%v", d)
	}
	for _, n := range []Setting[int32]{s.MaxRetries, s.MaxConnections, s.MaxPerBackend, s.MaxQueue} {
		require.True(t, n.Or(0) >= 0 && n.Or(0) <= 1e9, "%v", n)
	}
	if s.Weights != "" {
		again, err := parseWeights(string(s.Weights))
		require.NoError(t, err)
		require.Equal(t, s.Weights, again, "weights are in one spelling")
	}
}

func requireSoundNode(t *testing.T, n Node) {
	t.Helper()
	for i, a := range n.Addrs {
		require.True(t, a.IsValid() && a == a.Unmap() && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast(), "%v", a)
		require.NotContains(t, n.Addrs[:i], a)
	}
	for i, r := range n.PodCIDRs {
		require.True(t, r.IsValid() && r == r.Masked() && !r.Addr().Is4In6(), "%v", r)
		require.NotContains(t, n.PodCIDRs[:i], r)
	}
}

func itoa(n uint16) string { return strconv.Itoa(int(n)) }

// plain translates as a proxy with no options does.
func plain(svc *v1.Service) Service { return translate(svc, Options{}) }
