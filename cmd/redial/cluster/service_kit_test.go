package cluster

import (
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// service makes a Service for app=name with the ports tcp (80) and udp (81), of both families.
func (s *space) service(name string, change ...func(*v1.Service)) *v1.Service {
	s.t.Helper()
	both := v1.IPFamilyPolicyPreferDualStack
	svc := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}},
		Spec: v1.ServiceSpec{
			IPFamilyPolicy: &both,
			Selector:       map[string]string{"app": name},
			Ports: []v1.ServicePort{
				{Name: "tcp", Port: 80, TargetPort: intstr.FromString("tcp")},
				{Name: "udp", Port: 81, TargetPort: intstr.FromString("udp"), Protocol: v1.ProtocolUDP},
			},
		},
	}
	for _, c := range change {
		c(svc)
	}
	svc, err := s.api.CoreV1().Services(s.name).Create(s.t.Context(), svc, metav1.CreateOptions{})
	require.NoError(s.t, err)
	return svc
}

func (s *space) deleteService(name string) {
	s.t.Helper()
	require.NoError(s.t, s.api.CoreV1().Services(s.name).Delete(s.t.Context(), name, metav1.DeleteOptions{}))
}

// getService returns the Service's present state.
func (s *space) getService(name string) *v1.Service {
	s.t.Helper()
	svc, err := s.api.CoreV1().Services(s.name).Get(s.t.Context(), name, metav1.GetOptions{})
	require.NoError(s.t, err)
	return svc
}

func ofType(t v1.ServiceType) func(*v1.Service) { return func(svc *v1.Service) { svc.Spec.Type = t } }

func withAffinity(timeout int32) func(*v1.Service) {
	return func(svc *v1.Service) {
		svc.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		svc.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &timeout}}
	}
}

func withoutSelector(svc *v1.Service) { svc.Spec.Selector = nil }

func withFamilies(policy v1.IPFamilyPolicy, families ...v1.IPFamily) func(*v1.Service) {
	return func(svc *v1.Service) { svc.Spec.IPFamilyPolicy, svc.Spec.IPFamilies = &policy, families }
}

func withInternalLocal(svc *v1.Service) {
	local := v1.ServiceInternalTrafficPolicyLocal
	svc.Spec.InternalTrafficPolicy = &local
}

func withExternalLocal(svc *v1.Service) {
	svc.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
}

func withLabel(key, value string) func(*v1.Service) {
	return func(svc *v1.Service) { svc.Labels[key] = value }
}

// grantAddresses gives a Service load balancer IPs, as a cloud's controller does.
func (s *space) grantAddresses(name string, mode v1.LoadBalancerIPMode, ips ...string) {
	s.t.Helper()
	svc := s.getService(name)
	for _, ip := range ips {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: ip, IPMode: &mode})
	}
	_, err := s.api.CoreV1().Services(s.name).UpdateStatus(s.t.Context(), svc, metav1.UpdateOptions{})
	require.NoError(s.t, err)
}

// slice makes an EndpointSlice of IPv4 for a Service without a selector, of pods' addresses.
func (s *space) slice(service, name string, ports []discoveryv1.EndpointPort, pods ...*v1.Pod) {
	s.t.Helper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       ports,
	}
	for _, p := range pods {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{p.Status.PodIP}, NodeName: &p.Spec.NodeName})
	}
	_, err := s.api.DiscoveryV1().EndpointSlices(s.name).Create(s.t.Context(), slice, metav1.CreateOptions{})
	require.NoError(s.t, err)
}
