package cluster

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
)

func TestInternalTrafficPolicyLocal(t *testing.T) {
	for name, change := range map[string]func(*v1.PodTemplateSpec){
		"pod":         func(*v1.PodTemplateSpec) {},
		"hostNetwork": onHostNetwork(18082, 18083),
	} {
		t.Run(name, func(t *testing.T) {
			s := parallel(t)
			svc := s.service("web", ofType(v1.ServiceTypeNodePort), withInternalLocal)
			s.pod("web", onNode(node1), change)
			near := s.host(s.pod("near", onNode(node1)).Name)
			far := s.host(s.pod("far", onNode(node2)).Name)
			reaches(t, near, vips(svc), "web")
			reaches(t, node1.Host, vips(svc), "web")
			isDropped(t, far, vips(svc))
			isDropped(t, node2.Host, vips(svc))
			// The policy is about ClusterIPs alone.
			reaches(t, shared.Outside, nodePorts(svc, node2), "web")
			s.patch("service", "web", `{"spec":{"internalTrafficPolicy":"Cluster"}}`)
			reaches(t, far, vips(svc), "web")
		})
	}
}

func TestExternalTrafficPolicyLocal(t *testing.T) {
	s := parallel(t)
	near4, near6, err := shared.ExternalAddrs(node1)
	require.NoError(t, err)
	far4, far6, err := shared.ExternalAddrs(node2)
	require.NoError(t, err)
	svc := s.service("web", ofType(v1.ServiceTypeLoadBalancer), withExternalLocal, func(svc *v1.Service) {
		svc.Spec.ExternalIPs = []string{near4.String(), near6.String(), far4.String(), far6.String()}
	})
	// None anywhere is refused, not dropped.
	isRefused(t, shared.Outside, nodePorts(svc, node1))
	s.pod("here", onNode(node1), labelled("web"))
	client := s.host(s.pod("client", onNode(node2)).Name)
	near := append(targets(svc, near4, false), targets(svc, near6, false)...)
	far := append(targets(svc, far4, false), targets(svc, far6, false)...)

	reaches(t, shared.Outside, append(nodePorts(svc, node1), near...), "here")
	isDropped(t, shared.Outside, append(nodePorts(svc, node2), far...))
	// Who is on the node already came past no balancer: nothing would be gained by keeping him off other nodes' pods.
	reaches(t, node2.Host, append(nodePorts(svc, node2), far...), "here")
	reaches(t, client, append(nodePorts(svc, node2), far...), "here")
	// ClusterIPs are of the other policy.
	reaches(t, node2.Host, vips(svc), "here")

	s.pod("there", onNode(node2), labelled("web"))
	reaches(t, shared.Outside, append(nodePorts(svc, node1), near...), "here")
	reaches(t, shared.Outside, append(nodePorts(svc, node2), far...), "there")
	s.patch("service", "web", `{"spec":{"externalTrafficPolicy":"Cluster"}}`)
	reaches(t, shared.Outside, nodePorts(svc, node2), "here", "there")
}

func TestExternalIPs(t *testing.T) {
	s := parallel(t)
	v4, v6, err := shared.ExternalAddrs(node1)
	require.NoError(t, err)
	s.deploy("web", 2)
	pods := names(s.pods("web"))
	svc := s.service("web", func(svc *v1.Service) { svc.Spec.ExternalIPs = []string{v4.String(), v6.String()} })
	client := s.host(s.pod("client").Name)
	all := append(targets(svc, v4, false), targets(svc, v6, false)...)
	reaches(t, shared.Outside, all, pods...)
	reaches(t, client, all, pods...)
	reaches(t, node2.Host, all, pods...)
	s.patch("service", "web", `{"spec":{"externalIPs":["`+v6.String()+`"]}}`)
	reaches(t, shared.Outside, targets(svc, v6, false), pods...)
	isUnserved(t, shared.Outside, targets(svc, v4, false))
}

func TestLoadBalancerAddresses(t *testing.T) {
	s := parallel(t)
	v4, v6, err := shared.ExternalAddrs(node1)
	require.NoError(t, err)
	proxied, _, err := shared.ExternalAddrs(node1)
	require.NoError(t, err)
	s.deploy("web", 2)
	pods := names(s.pods("web"))
	svc := s.service("web", ofType(v1.ServiceTypeLoadBalancer))
	s.grantAddresses("web", v1.LoadBalancerIPModeVIP, v4.String(), v6.String())
	s.grantAddresses("web", v1.LoadBalancerIPModeProxy, proxied.String())
	all := append(targets(svc, v4, false), targets(svc, v6, false)...)
	reaches(t, shared.Outside, all, pods...)
	reaches(t, s.host(s.pod("client").Name), all, pods...)
	// Such a balancer wants to see even the nodes' own traffic.
	isUnserved(t, node1.Host, targets(svc, proxied, false))
}

func TestLoadBalancerSourceRanges(t *testing.T) {
	s := parallel(t)
	v4, v6, err := shared.ExternalAddrs(node1)
	require.NoError(t, err)
	s.pod("web")
	client := s.host(s.pod("client").Name)
	svc := s.service("web", ofType(v1.ServiceTypeLoadBalancer), func(svc *v1.Service) {
		svc.Spec.LoadBalancerSourceRanges = []string{" 198.18.4.0/24", "2001:db8:4::/64 "}
	})
	s.grantAddresses("web", v1.LoadBalancerIPModeVIP, v4.String(), v6.String())
	all := append(targets(svc, v4, false), targets(svc, v6, false)...)
	reaches(t, shared.Outside, nodePorts(svc, node1), "web") // the ranges are of the load balancer's addresses alone
	isDropped(t, shared.Outside, all)
	isDropped(t, client, all) // pods are no exception
	s.patch("service", "web", `{"spec":{"loadBalancerSourceRanges":["`+prefixOf(outsideAddrs[0])+`","`+prefixOf(outsideAddrs[1])+`"]}}`)
	reaches(t, shared.Outside, all, "web")
	isDropped(t, client, all)
	s.patch("service", "web", `{"spec":{"loadBalancerSourceRanges":["`+strings.Join(strings.Split(ClusterCIDRs, ","), `","`)+`"]}}`)
	reaches(t, client, all, "web")
	isDropped(t, shared.Outside, all)
	s.patch("service", "web", `{"spec":{"loadBalancerSourceRanges":null}}`)
	reaches(t, shared.Outside, all, "web")
}

// prefixOf is the network of an address with a prefix length.
func prefixOf(addr string) string { return netip.MustParsePrefix(addr).Masked().String() }

func TestTrafficDistribution(t *testing.T) {
	for _, how := range []string{v1.ServiceTrafficDistributionPreferSameZone, v1.ServiceTrafficDistributionPreferSameNode} {
		t.Run(how, func(t *testing.T) {
			s := parallel(t)
			svc := s.service("web", func(svc *v1.Service) { svc.Spec.TrafficDistribution = &how })
			s.pod("a", labelled("web"), onNode(node1))
			s.pod("b", labelled("web"), onNode(node2))
			reaches(t, node1.Host, vips(svc), "a")
			reaches(t, node2.Host, vips(svc), "b")
			s.deletePod("a")
			reaches(t, node1.Host, vips(svc), "b")
			s.patch("service", "web", `{"spec":{"trafficDistribution":null}}`)
			s.pod("c", labelled("web"), onNode(node1))
			reaches(t, node1.Host, vips(svc), "b", "c")
		})
	}
}

func TestLocalhostNodePorts(t *testing.T) {
	s := parallel(t)
	if !node1.IsRedial() {
		t.Skip("kube-proxy needs flags for it")
	}
	svc := s.service("web", ofType(v1.ServiceTypeNodePort))
	s.deploy("web", 2)
	pods := names(s.pods("web"))
	for _, a := range []string{"127.0.0.1", "::1"} {
		reaches(t, node1.Host, targets(svc, netip.MustParseAddr(a), true), pods...)
	}
}
