package cluster

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"redial/proxy/intercept/lab"
)

func TestServiceFunctions(t *testing.T) {
	s := parallel(t)
	svc := s.service("web", ofType(v1.ServiceTypeNodePort))
	s.deploy("web", 3)
	client := s.pod("client")
	pods := names(s.pods("web"))
	for _, from := range []*lab.Host{node1.Host, node2.Host, s.host(client.Name)} {
		reaches(t, from, vips(svc), pods...)
	}
	for _, from := range []*lab.Host{node1.Host, shared.Outside, s.host(client.Name)} {
		reaches(t, from, append(nodePorts(svc, node1), nodePorts(svc, node2)...), pods...)
	}
}

func TestServicePortOfTwoProtocols(t *testing.T) {
	s := parallel(t)
	svc := s.service("web", ofType(v1.ServiceTypeNodePort), func(svc *v1.Service) {
		svc.Spec.Ports[1].Port = svc.Spec.Ports[0].Port
	})
	s.pod("web")
	reaches(t, node1.Host, append(vips(svc), nodePorts(svc, node1)...), "web")
}

func TestServiceEndpointsFollowPods(t *testing.T) {
	s := parallel(t)
	svc := s.service("web")
	for _, replicas := range []int32{1, 3, 2} {
		if replicas == 1 {
			s.deploy("web", 1)
		}
		s.scale("web", replicas)
		reaches(t, node1.Host, vips(svc), names(s.pods("web"))...)
	}
	s.scale("web", 0)
	isRefused(t, node1.Host, vips(svc))
}

func TestServiceWithHostNetworkEndpoints(t *testing.T) {
	s := parallel(t)
	svc := s.service("web", ofType(v1.ServiceTypeNodePort))
	s.pod("web", onNode(node2), onHostNetwork(18080, 18081))
	for _, from := range []*lab.Host{node1.Host, node2.Host} {
		reaches(t, from, vips(svc), "web")
	}
	reaches(t, shared.Outside, nodePorts(svc, node1), "web")
}

func TestServiceToItself(t *testing.T) {
	s := parallel(t)
	svc := s.service("web")
	s.pod("web")
	reaches(t, s.host("web"), vips(svc), "web")
}

func TestServiceLargeDatagrams(t *testing.T) {
	s := parallel(t)
	svc := s.service("web")
	s.pod("web")
	reaches(t, node1.Host, vips(svc), "web")
	want := strings.Repeat("x", 2000)
	for _, to := range vips(svc) {
		got, err := Client{Host: node1.Host}.Ask(to.network, to.addr, "echo "+want)
		require.NoError(t, err)
		assert.Equal(t, want, got, to)
	}
}

// Two Services of the same pods are two: what happens to one must not touch the other.
func TestServicesOfTheSamePods(t *testing.T) {
	s := parallel(t)
	s.deploy("web", 2)
	one := s.service("one", func(svc *v1.Service) { svc.Spec.Selector["app"] = "web" })
	other := s.service("other", func(svc *v1.Service) { svc.Spec.Selector["app"] = "web" })
	pods := names(s.pods("web"))
	reaches(t, node1.Host, append(vips(one), vips(other)...), pods...)
	s.deleteService("one")
	isUnserved(t, node1.Host, vips(one))
	reaches(t, node1.Host, vips(other), pods...)
}

func TestServicesUpAndDownAndAgain(t *testing.T) {
	s := parallel(t)
	s.deploy("web", 2)
	pods := names(s.pods("web"))
	svc := s.service("web", ofType(v1.ServiceTypeNodePort))
	reaches(t, node1.Host, append(vips(svc), nodePorts(svc, node1)...), pods...)
	s.deleteService("web")
	isUnserved(t, node1.Host, vips(svc))
	isRefused(t, shared.Outside, nodePorts(svc, node1))
	out, err := node1.Host.Output("ss", "-Hlntu")
	require.NoError(t, err)
	for _, p := range svc.Spec.Ports {
		assert.NotContains(t, out, fmt.Sprintf(":%d ", p.NodePort), "the node port is free for others")
	}
	again := s.service("web", func(new *v1.Service) { new.Spec.ClusterIP = svc.Spec.ClusterIP })
	reaches(t, node1.Host, vips(again), pods...)
}

func TestServiceTypeChanges(t *testing.T) {
	s := parallel(t)
	s.deploy("web", 2)
	pods := names(s.pods("web"))
	svc := s.service("web")
	reaches(t, node1.Host, vips(svc), pods...)

	s.patch("service", "web", `{"spec":{"type":"NodePort"}}`)
	reaches(t, shared.Outside, nodePorts(s.getService("web"), node1), pods...)

	ports := nodePorts(s.getService("web"), node1)
	s.patch("service", "web", `{"spec":{"type":"ClusterIP"}}`)
	isRefused(t, shared.Outside, ports)
	reaches(t, node1.Host, vips(svc), pods...)

	s.patch("service", "web", `{"spec":{"type":"ExternalName","externalName":"example.invalid","clusterIP":null,"clusterIPs":null,"ipFamilies":null,"ipFamilyPolicy":null}}`)
	isUnserved(t, node1.Host, vips(svc))

	s.patch("service", "web", `{"spec":{"type":"NodePort","externalName":null,"ipFamilyPolicy":"RequireDualStack"}}`)
	svc = s.getService("web")
	reaches(t, node1.Host, append(vips(svc), nodePorts(svc, node1)...), pods...)
}

// A changed port stops to be served under the old number, and the number of another port must not matter.
func TestServicePortsChange(t *testing.T) {
	s := parallel(t)
	s.pod("web")
	svc := s.service("web")
	reaches(t, node1.Host, vips(svc), "web")
	old := vips(svc)
	_, err := s.api.CoreV1().Services(s.name).Update(t.Context(), func() *v1.Service {
		svc := s.getService("web")
		svc.Spec.Ports[0].Port = 8000
		svc.Spec.Ports = append(svc.Spec.Ports, v1.ServicePort{Name: "more", Port: 9000, TargetPort: intstr.FromInt32(podTCP)})
		return svc
	}(), metav1.UpdateOptions{})
	require.NoError(t, err)
	reaches(t, node1.Host, vips(s.getService("web")), "web")
	for _, to := range old {
		if to.network == "udp" {
			reaches(t, node1.Host, []target{to}, "web")
			continue
		}
		_, err := Client{Host: node1.Host}.Ask(to.network, to.addr, "hostname")
		assert.Error(t, err, "%s was given up", to)
	}
}

func TestServiceFamilies(t *testing.T) {
	for name, test := range map[string]struct {
		policy   v1.IPFamilyPolicy
		families []v1.IPFamily
	}{
		"v4":    {v1.IPFamilyPolicySingleStack, []v1.IPFamily{v1.IPv4Protocol}},
		"v6":    {v1.IPFamilyPolicySingleStack, []v1.IPFamily{v1.IPv6Protocol}},
		"v4,v6": {v1.IPFamilyPolicyRequireDualStack, []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}},
		"v6,v4": {v1.IPFamilyPolicyRequireDualStack, []v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol}},
	} {
		t.Run(name, func(t *testing.T) {
			s := parallel(t)
			svc := s.service("web", ofType(v1.ServiceTypeNodePort), withFamilies(test.policy, test.families...))
			s.pod("web")
			require.Len(t, svc.Spec.ClusterIPs, len(test.families))
			reaches(t, s.host("web"), vips(svc), "web")
			for _, a := range node1.Addrs {
				family := v1.IPv4Protocol
				if a.Is6() {
					family = v1.IPv6Protocol
				}
				served := false
				for _, f := range test.families {
					served = served || f == family
				}
				if served {
					reaches(t, shared.Outside, targets(svc, a, true), "web")
				} else {
					isRefused(t, shared.Outside, targets(svc, a, true))
				}
			}
		})
	}
}

func TestServiceOfTheAPIServer(t *testing.T) {
	parallel(t)
	svc, err := shared.Client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	require.NoError(t, err)
	to := netip.AddrPortFrom(netip.MustParseAddr(svc.Spec.ClusterIP), 443)
	eventually(t, "the API server answers at its Service", func() error {
		_, err := node1.Host.Output("curl", "-sk", "--max-time", "5", "https://"+to.String()+"/version")
		return err
	})
}
