package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redial/proxy/intercept/lab"
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

	for _, from := range []*lab.Host{node1.Host, s.host(client.Name)} {
		isRefused(t, from, append(vips(svc), external...))
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

// Neither side of a Service that another proxy is to serve, or that is to have no address of its own, is ours.
func TestServiceLabels(t *testing.T) {
	const proxyName, headless = "service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"
	s := parallel(t)
	s.pod("web")
	of := func(svc *v1.Service) { svc.Spec.Selector["app"] = "web" }
	plain := s.service("plain", of)
	foreign := s.service("foreign", of, withLabel(proxyName, "another"))
	bare := s.service("bare", of, withLabel(headless, ""))
	reaches(t, node1.Host, vips(plain), "web")
	isUnserved(t, node1.Host, vips(foreign))
	// The Service is served, but its slices are labelled like it and so not looked at.
	isRefused(t, node1.Host, vips(bare))

	s.patch("service", "plain", `{"metadata":{"labels":{"`+proxyName+`":"another"}}}`)
	isUnserved(t, node1.Host, vips(plain))
	s.patch("service", "foreign", `{"metadata":{"labels":{"`+proxyName+`":null}}}`)
	reaches(t, node1.Host, vips(foreign), "web")
	s.patch("service", "plain", `{"metadata":{"labels":{"`+proxyName+`":null}}}`)
	reaches(t, node1.Host, vips(plain), "web")

	s.patch("service", "bare", `{"metadata":{"labels":{"`+headless+`":null}}}`)
	reaches(t, node1.Host, vips(bare), "web")
	s.patch("service", "bare", `{"metadata":{"labels":{"`+headless+`":""}}}`)
	isRefused(t, node1.Host, vips(bare))
}
