package config

import (
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//lint:file-ignore SA1019 see translateEndpoints

func newEndpoints(subsets ...v1.EndpointSubset) *v1.Endpoints {
	return &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Subsets: subsets}
}

func subset(ready, notReady []string, ports ...v1.EndpointPort) v1.EndpointSubset {
	s := v1.EndpointSubset{Ports: ports}
	for _, ip := range ready {
		s.Addresses = append(s.Addresses, v1.EndpointAddress{IP: ip})
	}
	for _, ip := range notReady {
		s.NotReadyAddresses = append(s.NotReadyAddresses, v1.EndpointAddress{IP: ip, NodeName: ptr("node-a")})
	}
	return s
}

func TestEndpoints(t *testing.T) {
	tr := delivered()
	tr.SetService(newService())
	tr.SetEndpoints(newEndpoints(
		subset([]string{"127.0.0.1"}, []string{"10.1.0.2"}, v1.EndpointPort{Name: "http", Port: 8080}),
		subset([]string{"127.0.0.1"}, nil, v1.EndpointPort{Name: "http", Port: 8081}),
		subset([]string{"10.1.0.9"}, nil, v1.EndpointPort{Name: "other", Port: 1}),
	))
	got := tr.Take()[web]
	a := addrPorts("10.1.0.2:8080", "127.0.0.1:8080", "127.0.0.1:8081")
	require.Equal(t, []Endpoint{
		{Addr: a[0], At: Place{NodeName: "node-a"}.handle()},
		{Addr: a[1], Ready: true, Serving: true},
		{Addr: a[2], Ready: true, Serving: true},
	}, got.Ports[0].Endpoints)
	require.Empty(t, got.Problems)
	require.Equal(t, a[1:], Usable(got.Ports[0].Endpoints, IPv4, ClusterPool, Node{}))
}

func TestEndpointsProblems(t *testing.T) {
	tr := delivered()
	tr.SetService(newService())
	tr.SetEndpoints(newEndpoints(
		subset([]string{"x"}, []string{"224.0.0.1"}, v1.EndpointPort{Name: "http", Port: 0}),
		subset([]string{"10.1.0.1"}, nil, v1.EndpointPort{Name: "web", Port: 80}),
	))
	got := tr.Take()[web]
	requireProblems(t, got.Problems,
		Problem{"http", ReasonPortNameMismatch, `its endpoints have "web"`},
		Problem{"", ReasonInvalidEndpoint, `Endpoints default/web: subsets[0].addresses[0].ip "x" is not an IP address: 2 endpoints`},
		Problem{"", ReasonInvalidEndpointSet, "Endpoints default/web: subsets[0].ports[0].port 0"})
}

// Endpoints count only while there is no slice, even an empty one.
func TestSlicesComeBeforeEndpoints(t *testing.T) {
	tr := delivered()
	tr.SetService(newService())
	tr.SetEndpoints(newEndpoints(subset([]string{"10.1.0.1"}, nil, v1.EndpointPort{Name: "http", Port: 8080})))
	require.Equal(t, []string{"10.1.0.1:8080"}, eps(t, tr.Take()[web], "http"))
	tr.SetSlice(newSlice("web-1"))
	require.Empty(t, eps(t, tr.Take()[web], "http"))
	tr.DeleteEndpoints(web)
	require.Empty(t, tr.Take())
	tr.SetEndpoints(newEndpoints(subset([]string{"10.1.0.2"}, nil, v1.EndpointPort{Name: "http", Port: 8080})))
	require.Empty(t, tr.Take())
	tr.DeleteSlice("default", "web-1")
	require.Equal(t, []string{"10.1.0.2:8080"}, eps(t, tr.Take()[web], "http"))
	tr.DeleteEndpoints(web)
	require.Empty(t, eps(t, tr.Take()[web], "http"))
}
