package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Slices of one Service may each have some of its ports, and some of its endpoints.
func TestSlicesOfAServiceWithoutSelector(t *testing.T) {
	s := parallel(t)
	one, two, three := s.pod("one"), s.pod("two"), s.pod("three")
	svc := s.service("web", withoutSelector, withFamilies(v1.IPFamilyPolicySingleStack, v1.IPv4Protocol), func(svc *v1.Service) {
		svc.Spec.Ports = append(svc.Spec.Ports, v1.ServicePort{Name: "more", Port: 90})
	})
	s.slice("web", "web-1", []discoveryv1.EndpointPort{port("tcp", podTCP, v1.ProtocolTCP), port("udp", podUDP, v1.ProtocolUDP)}, one, two)
	s.slice("web", "web-2", []discoveryv1.EndpointPort{port("tcp", podTCP, v1.ProtocolTCP)}, two, three)
	s.slice("web", "web-3", []discoveryv1.EndpointPort{port("more", podTCP, v1.ProtocolTCP)}, three)
	all := vips(svc)
	reaches(t, node1.Host, all[:1], "one", "two", "three")
	reaches(t, node1.Host, all[1:2], "one", "two")
	reaches(t, node1.Host, all[2:], "three")
	require.NoError(t, s.api.DiscoveryV1().EndpointSlices(s.name).Delete(t.Context(), "web-1", metav1.DeleteOptions{}))
	reaches(t, node1.Host, all[:1], "two", "three")
	isRefused(t, node1.Host, all[1:2])
	s.patch("endpointslice", "web-2", `{"endpoints":[]}`)
	isRefused(t, node1.Host, all[:1])
	reaches(t, node1.Host, all[2:], "three")
}

// Whoever still writes Endpoints has them mirrored into slices.
func TestMirroredEndpoints(t *testing.T) {
	s := parallel(t)
	one, two := s.pod("one"), s.pod("two")
	svc := s.service("web", withoutSelector, withFamilies(v1.IPFamilyPolicySingleStack, v1.IPv4Protocol))
	//lint:ignore SA1019 what is deprecated is what is tested
	endpoints := &v1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		//lint:ignore SA1019 see above
		Subsets: []v1.EndpointSubset{{
			Addresses: []v1.EndpointAddress{{IP: one.Status.PodIP}},
			Ports:     []v1.EndpointPort{{Name: "tcp", Port: podTCP}, {Name: "udp", Port: podUDP, Protocol: v1.ProtocolUDP}},
		}},
	}
	api := s.api.CoreV1().Endpoints(s.name)
	_, err := api.Create(t.Context(), endpoints, metav1.CreateOptions{})
	require.NoError(t, err)
	reaches(t, node1.Host, vips(svc), "one")
	endpoints.Subsets[0].Addresses[0].IP = two.Status.PodIP
	_, err = api.Update(t.Context(), endpoints, metav1.UpdateOptions{})
	require.NoError(t, err)
	reaches(t, node1.Host, vips(svc), "two")
	require.NoError(t, api.Delete(t.Context(), "web", metav1.DeleteOptions{}))
	isRefused(t, node1.Host, vips(svc))
}

func port(name string, number int32, protocol v1.Protocol) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Port: &number, Protocol: &protocol}
}
