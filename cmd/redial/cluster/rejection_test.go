package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRejectedWithoutEndpoints(t *testing.T) {
	s := parallel(t)
	client := s.pod("client", onNode(node1))
	v4, v6, err := shared.ExternalAddrs(node1)
	require.NoError(t, err)
	lb4, lb6, err := shared.ExternalAddrs(node1)
	require.NoError(t, err)
	svc := s.service("web", ofType(v1.ServiceTypeLoadBalancer), func(svc *v1.Service) {
		svc.Spec.ExternalIPs = []string{v4.String(), v6.String()}
	})
	s.grantAddresses("web", v1.LoadBalancerIPModeVIP, lb4.String(), lb6.String())
	external := append(targets(svc, v4, false), targets(svc, v6, false)...)
	external = append(external, append(targets(svc, lb4, false), targets(svc, lb6, false)...)...)

	isRefused(t, node1.Host, vips(svc))
	isRefused(t, s.host(client.Name), append(vips(svc), external...))
	if node1.IsRedial() { // kube-proxy's rules for that see nothing of the node's own traffic
		isRefused(t, node1.Host, external)
	}
	isRefused(t, shared.Outside, append(external, nodePorts(svc, node1)...))
	s.pod("web")
	reaches(t, s.host(client.Name), append(vips(svc), external...), "web")
	reaches(t, shared.Outside, append(external, nodePorts(svc, node1)...), "web")
}

func TestRejectedForEvictedPods(t *testing.T) {
	s := parallel(t)
	svc := s.service("web")
	pod := s.pod("web")
	reaches(t, node1.Host, vips(svc), "web")
	pod.Status = v1.PodStatus{Phase: v1.PodFailed, Reason: "Evicted", Message: "the node was low on resource"}
	pod.ResourceVersion = ""
	_, err := s.api.CoreV1().Pods(s.name).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	isRefused(t, node1.Host, vips(svc))
}

// A Service with this label is another proxy's, from the moment it has it to the moment it has not.
func TestServiceProxyNameLabel(t *testing.T) {
	const label = "service.kubernetes.io/service-proxy-name"
	s := parallel(t)
	s.pod("web")
	of := func(svc *v1.Service) { svc.Spec.Selector["app"] = "web" }
	ours, foreign := s.service("ours", of), s.service("foreign", of, withLabel(label, "another"))
	reaches(t, node1.Host, vips(ours), "web")
	isUnserved(t, node1.Host, vips(foreign))
	s.patch("service", "ours", `{"metadata":{"labels":{"`+label+`":"another"}}}`)
	isUnserved(t, node1.Host, vips(ours))
	s.patch("service", "foreign", `{"metadata":{"labels":{"`+label+`":null}}}`)
	reaches(t, node1.Host, vips(foreign), "web")
	s.patch("service", "ours", `{"metadata":{"labels":{"`+label+`":null}}}`)
	reaches(t, node1.Host, vips(ours), "web")
}

// Slices with this label are not for Service proxies. On a Service with an address it says nothing: the controllers keep it
// off its slices, and kube-proxy does not look at it there.
func TestHeadlessLabel(t *testing.T) {
	const label = "service.kubernetes.io/headless"
	s := parallel(t)
	pod := s.pod("web")
	svc := s.service("custom", withoutSelector, withFamilies(v1.IPFamilyPolicySingleStack, v1.IPv4Protocol))
	s.slice("custom", "custom-1", []discoveryv1.EndpointPort{port("tcp", podTCP, v1.ProtocolTCP), port("udp", podUDP, v1.ProtocolUDP)}, pod)
	reaches(t, node1.Host, vips(svc), "web")
	s.patch("endpointslice", "custom-1", `{"metadata":{"labels":{"`+label+`":""}}}`)
	isRefused(t, node1.Host, vips(svc))
	s.patch("endpointslice", "custom-1", `{"metadata":{"labels":{"`+label+`":null}}}`)
	reaches(t, node1.Host, vips(svc), "web")
	labelled := s.service("web", withLabel(label, ""))
	reaches(t, node1.Host, vips(labelled), "web")
}
