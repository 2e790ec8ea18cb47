package cluster

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The cluster itself has to work before it can say anything about a proxy: pods of a Deployment reach each other across
// nodes, and the controllers write what they are into slices.
func TestClusterWithoutServices(t *testing.T) {
	s := parallel(t)
	s.service("web")
	s.deploy("web", 4)
	pods := s.pods("web")
	nodes := map[string]int{}
	for _, p := range pods {
		nodes[p.Spec.NodeName]++
		for _, ip := range p.Status.PodIPs {
			for _, client := range append(s.hostsOf(pods), node1.Host, node2.Host, shared.Outside) {
				for network, port := range map[string]uint16{"tcp": podTCP, "udp": podUDP} {
					name, err := Client{Host: client}.Ask(network, netip.AddrPortFrom(netip.MustParseAddr(ip.IP), port), "hostname")
					require.NoError(t, err, "%s to %s at %s", network, p.Name, ip.IP)
					require.Equal(t, p.Name, name)
				}
			}
		}
	}
	assert.Equal(t, map[string]int{"node1": 2, "node2": 2}, nodes)
	for _, replicas := range []int32{1, 3, 0} {
		s.scale("web", replicas)
		s.awaitEndpoints("web", int(replicas))
	}
}

// awaitEndpoints waits until a Service's slices have n ready endpoints of each family.
func (s *space) awaitEndpoints(service string, n int) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("service %s has %d ready endpoints", service, n), func() error {
		slices, err := s.api.DiscoveryV1().EndpointSlices(s.name).List(s.t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
		if err != nil {
			return err
		}
		ready := 0
		for _, slice := range slices.Items {
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready == nil || *e.Conditions.Ready {
					ready++
				}
			}
		}
		if ready != 2*n {
			return fmt.Errorf("of both families together it has %d", ready)
		}
		return nil
	})
}
