package cluster

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"redial/proxy/intercept/lab"
)

// A UDP client that keeps its port has to get to whatever serves now, though the kernel and the proxy remember its flow.
func TestUDPFlowsFollowPods(t *testing.T) {
	for name, test := range map[string]struct {
		address func(*v1.Service) []target
		client  func(*space) *lab.Host
	}{
		"cluster ip":                    {vips, func(s *space) *lab.Host { return s.host(s.pod("client").Name) }},
		"node port":                     {func(svc *v1.Service) []target { return nodePorts(svc, node1) }, func(*space) *lab.Host { return shared.Outside }},
		"client on the host network":    {vips, func(*space) *lab.Host { return node1.Host }},
		"node port from the node's own": {func(svc *v1.Service) []target { return nodePorts(svc, node1) }, func(*space) *lab.Host { return node1.Host }},
	} {
		t.Run(name, func(t *testing.T) {
			s := parallel(t)
			svc := s.service("web", ofType(v1.ServiceTypeNodePort))
			client := test.client(s)
			var flows []*Session
			for _, to := range test.address(svc) {
				if to.network != "udp" {
					continue
				}
				flow, err := Client{Host: client, Patience: time.Second}.Open(to.network, to.addr)
				require.NoError(t, err)
				defer flow.Close()
				flows = append(flows, flow)
			}
			require.Len(t, flows, 2)
			follows := func(pod string) {
				t.Helper()
				for _, flow := range flows {
					eventually(t, fmt.Sprintf("%s answers at %s", pod, flow.RemoteAddr()), func() error {
						name, err := flow.Ask("hostname")
						if err == nil && name != pod {
							err = fmt.Errorf("answered by %s", name)
						}
						return err
					})
				}
			}
			// Datagrams are on their way before anybody can serve them.
			for _, flow := range flows {
				_, err := flow.Ask("hostname")
				require.Error(t, err)
			}
			s.pod("one", labelled("web"), onNode(node2))
			follows("one")
			s.deletePod("one")
			s.pod("two", labelled("web"), onNode(node2))
			follows("two")
			// Its address stays good, but it is not to be used.
			s.annotate("two", NotReady, true)
			s.pod("three", labelled("web"), onNode(node1))
			follows("three")
			s.annotate("two", NotReady, false)
			s.annotate("three", NotReady, true)
			follows("two")
			if !node1.IsRedial() {
				return // kube-proxy leaves the flows of a node port as they are when the last endpoint goes
			}
			// None, then again the same.
			s.annotate("two", NotReady, true)
			s.awaitEndpoints("web", 0)
			for _, flow := range flows {
				eventually(t, "nobody answers", func() error {
					if name, err := flow.Ask("hostname"); err == nil {
						return fmt.Errorf("answered by %s", name)
					}
					return nil
				})
			}
			s.annotate("two", NotReady, false)
			follows("two")
		})
	}
}

// Before a Service exists its datagrams go nowhere, and conntrack remembers that for as long as they keep coming.
func TestUDPFlowOlderThanItsService(t *testing.T) {
	s := parallel(t)
	client := s.host(s.pod("client").Name)
	s.pod("web")
	svc := s.service("web")
	s.deleteService("web")
	isUnserved(t, client, vips(svc))
	to := vips(svc)[1]
	require.Equal(t, "udp", to.network)
	flow, err := Client{Host: client, Patience: time.Second, Source: netip.AddrPortFrom(netip.IPv4Unspecified(), 12345)}.Open(to.network, to.addr)
	require.NoError(t, err)
	defer flow.Close()
	_, err = flow.Ask("hostname")
	require.Error(t, err)
	s.service("web", func(again *v1.Service) { again.Spec.ClusterIP = svc.Spec.ClusterIP })
	eventually(t, "the flow is served", func() error {
		_, err := flow.Ask("hostname")
		return err
	})
}
