package config

import (
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
)

func TestPolicies(t *testing.T) {
	local, cluster := ptr(v1.ServiceInternalTrafficPolicyLocal), ptr(v1.ServiceInternalTrafficPolicyCluster)
	for _, c := range []struct {
		name               string
		typ                v1.ServiceType
		internal           *v1.ServiceInternalTrafficPolicy
		external           v1.ServiceExternalTrafficPolicy
		externalIPs        []string
		internalLocal      bool
		externalLocal      bool
		problem, inMessage string
	}{
		{name: "none"},
		{name: "Cluster", typ: "NodePort", internal: cluster, external: "Cluster"},
		{name: "internal alone", internal: local, internalLocal: true},
		{name: "external of a NodePort", typ: "NodePort", external: "Local", externalLocal: true},
		{name: "external of a LoadBalancer", typ: "LoadBalancer", external: "Local", externalLocal: true},
		{name: "external of externalIPs", typ: "ClusterIP", external: "Local", externalIPs: []string{"192.0.2.1"}, externalLocal: true},
		{name: "both", typ: "LoadBalancer", internal: local, external: "Local", internalLocal: true, externalLocal: true},
		{name: "external of nothing", typ: "ClusterIP", internal: local, external: "Local", internalLocal: true,
			problem: ReasonInvalidField, inMessage: "spec.externalTrafficPolicy Local needs"},
		{name: "external of no type", external: "Local", problem: ReasonInvalidField, inMessage: "spec.externalTrafficPolicy Local needs"},
		{name: "unknown external", typ: "NodePort", external: "Nearest", internal: local, internalLocal: true,
			problem: ReasonUnsupportedPolicy, inMessage: `spec.externalTrafficPolicy "Nearest"`},
		{name: "unknown internal", typ: "NodePort", external: "Local", internal: ptr(v1.ServiceInternalTrafficPolicy("local")), externalLocal: true,
			problem: ReasonUnsupportedPolicy, inMessage: `spec.internalTrafficPolicy "local"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := plain(newService(func(s *v1.Service) {
				s.Spec.Type, s.Spec.ExternalIPs = c.typ, c.externalIPs
				s.Spec.InternalTrafficPolicy, s.Spec.ExternalTrafficPolicy = c.internal, c.external
			}))
			require.Equal(t, c.internalLocal, got.Ports[0].InternalLocal)
			require.Equal(t, c.externalLocal, got.Ports[0].ExternalLocal)
			if c.problem == "" {
				require.Empty(t, got.Problems)
			} else {
				requireProblems(t, got.Problems, Problem{Reason: c.problem, Message: c.inMessage})
			}
		})
	}
}

// The policies are the Service's: all its ports have them.
func TestPoliciesOfAllPorts(t *testing.T) {
	got := plain(newService(func(s *v1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = v1.ServiceTypeNodePort, v1.ServiceExternalTrafficPolicyLocal
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "dns", Protocol: "UDP", Port: 53})
	}))
	require.Len(t, got.Ports, 2)
	for _, p := range got.Ports {
		require.True(t, p.ExternalLocal, p.Name)
	}
}

func TestHealthCheckNodePort(t *testing.T) {
	for _, c := range []struct {
		name    string
		typ     v1.ServiceType
		policy  v1.ServiceExternalTrafficPolicy
		port    int32
		want    uint16
		problem string
	}{
		{"LoadBalancer and Local", "LoadBalancer", "Local", 32000, 32000, ""},
		{"not allocated", "LoadBalancer", "Local", 0, 0, ""},
		{"Cluster", "LoadBalancer", "Cluster", 32000, 0, "32000 needs spec.type LoadBalancer and"},
		{"NodePort", "NodePort", "Local", 32000, 0, "32000 needs spec.type LoadBalancer and"},
		{"too large", "LoadBalancer", "Local", 65536, 0, "65536 is not within 1-65535"},
		{"negative", "LoadBalancer", "Local", -1, 0, "-1 is not within 1-65535"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := plain(newService(func(s *v1.Service) {
				s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = c.typ, c.policy, c.port
			}))
			require.Equal(t, c.want, got.HealthCheckNodePort)
			if c.problem == "" {
				require.Empty(t, got.Problems)
			} else {
				requireProblems(t, got.Problems, Problem{Reason: ReasonInvalidField, Message: c.problem})
			}
		})
	}
	got := plain(newService(func(s *v1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = "LoadBalancer", "Local", 32000
		s.Spec.Ports = nil
	}))
	require.Zero(t, got.HealthCheckNodePort, "nothing of the Service is served")
}

// spec.allocateLoadBalancerNodePorts false leaves the node ports out; everything else is served.
func TestLoadBalancerWithoutNodePorts(t *testing.T) {
	got := plain(newService(func(s *v1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = "LoadBalancer", "Local", 32000
		s.Spec.AllocateLoadBalancerNodePorts = ptr(false)
		s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	}))
	require.Empty(t, got.Problems)
	require.Zero(t, got.Ports[0].NodePort)
	require.Empty(t, got.Ports[0].NodePortFamilies)
	require.Equal(t, addrs("192.0.2.1"), got.Ports[0].LoadBalancerIPs)
	require.True(t, got.Ports[0].ExternalLocal)
	require.Equal(t, uint16(32000), got.HealthCheckNodePort)
}
