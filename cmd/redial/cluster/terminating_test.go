package cluster

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"redial/proxy/intercept/lab"
)

func TestTerminatingEndpointsAreTheLastResort(t *testing.T) {
	s := parallel(t)
	svc := s.service("web", ofType(v1.ServiceTypeNodePort))
	s.pod("old", annotated(Lingers), labelled("web"))
	reaches(t, node1.Host, vips(svc), "old")
	s.deletePod("old")
	s.awaitEndpoints("web", 0)
	// With no other, the one that is terminating goes on to be used.
	reaches(t, node1.Host, vips(svc), "old")
	reaches(t, shared.Outside, nodePorts(svc, node2), "old")
	s.pod("new", labelled("web"))
	reaches(t, node1.Host, vips(svc), "new")
	reaches(t, shared.Outside, nodePorts(svc, node2), "new")
}

func TestTerminatingLocalEndpoints(t *testing.T) {
	s := parallel(t)
	local4, local6, err := shared.ExternalAddrs(node1)
	require.NoError(t, err)
	remote4, remote6, err := shared.ExternalAddrs(node2)
	require.NoError(t, err)
	svc := s.service("web", ofType(v1.ServiceTypeLoadBalancer), withInternalLocal, withExternalLocal)
	s.grantAddresses("web", v1.LoadBalancerIPModeVIP, local4.String(), local6.String(), remote4.String(), remote6.String())
	s.pod("web", annotated(Lingers), onNode(node1))
	reaches(t, node1.Host, vips(svc), "web")
	s.deletePod("web")
	s.awaitEndpoints("web", 0)
	reaches(t, node1.Host, vips(svc), "web")
	reaches(t, shared.Outside, nodePorts(svc, node1), "web")
	reaches(t, shared.Outside, append(targets(svc, local4, false), targets(svc, local6, false)...), "web")
	isDropped(t, node2.Host, vips(svc))
	isDropped(t, shared.Outside, nodePorts(svc, node2))
	isDropped(t, shared.Outside, append(targets(svc, remote4, false), targets(svc, remote6, false)...))
}

// A balancer in front of the nodes is to go away from a node whose last pod is going, before it is gone.
func TestHealthCheckNodePort(t *testing.T) {
	s := parallel(t)
	svc := s.service("web", ofType(v1.ServiceTypeLoadBalancer), withExternalLocal)
	require.NotZero(t, svc.Spec.HealthCheckNodePort)
	answers := func(node *Node, code int) {
		t.Helper()
		for _, a := range node.Addrs {
			url := "http://" + netip.AddrPortFrom(a, uint16(svc.Spec.HealthCheckNodePort)).String() + "/healthz"
			eventually(t, fmt.Sprintf("%s says %d", url, code), func() error {
				got, _, err := get(shared.Outside, url)
				if err == nil && got != code {
					err = fmt.Errorf("it says %d", got)
				}
				return err
			})
		}
	}
	s.pod("web", annotated(Lingers), onNode(node1))
	answers(node1, http.StatusOK)
	answers(node2, http.StatusServiceUnavailable)
	s.deletePod("web")
	answers(node1, http.StatusServiceUnavailable)
	reaches(t, shared.Outside, nodePorts(svc, node1), "web")
	s.patch("service", "web", `{"spec":{"externalTrafficPolicy":"Cluster"}}`)
	url := "http://" + netip.AddrPortFrom(node1.Addrs[0], uint16(svc.Spec.HealthCheckNodePort)).String()
	eventually(t, "the health check's port is closed", func() error {
		if _, _, err := get(shared.Outside, url); err == nil {
			return fmt.Errorf("it answers")
		}
		return nil
	})
}

// An unready pod is used only if the Service publishes such, terminating or not.
func TestUnreadyEndpoints(t *testing.T) {
	for name, publish := range map[string]bool{"published": true, "withheld": false} {
		t.Run(name, func(t *testing.T) {
			s := parallel(t)
			svc := s.service("web", func(svc *v1.Service) { svc.Spec.PublishNotReadyAddresses = publish })
			s.pod("web", annotated(Lingers), annotated(NotReady))
			expect := func() {
				t.Helper()
				if publish {
					reaches(t, node1.Host, vips(svc), "web")
				} else {
					isRefused(t, node1.Host, vips(svc))
				}
			}
			expect()
			s.annotate("web", NotReady, false)
			reaches(t, node1.Host, vips(svc), "web")
			s.annotate("web", NotReady, true)
			expect()
			s.deletePod("web")
			expect()
		})
	}
}

func labelled(app string) func(*v1.PodTemplateSpec) {
	return func(t *v1.PodTemplateSpec) { t.Labels["app"] = app }
}

// get asks for a page from a host.
func get(from *lab.Host, url string) (code int, body string, err error) {
	out, err := from.Output("curl", "-gs", "--max-time", "5", "-w", "\n%{http_code}", url)
	if err != nil {
		return 0, out, err
	}
	_, err = fmt.Sscan(out[len(out)-3:], &code)
	return code, out[:len(out)-4], err
}

// The pods of a Deployment exit at once when they are told to, and no hook delays that: when the last client is sent to
// one is a race that a proxy without retries must lose.
func TestRollingUpdateLosesNothing(t *testing.T) {
	s := parallel(t)
	if !node1.IsRedial() {
		t.Skip("only redial promises that")
	}
	svc := s.service("web", ofType(v1.ServiceTypeNodePort))
	s.deploy("web", 3)
	client := s.pod("client", onNode(node2))
	pods := names(s.pods("web"))
	reaches(t, shared.Outside, nodePorts(svc, node1), pods...)
	reaches(t, s.host(client.Name), vips(svc), pods...)
	var loads []*Load
	for _, to := range append(vips(svc), nodePorts(svc, node1)...) {
		if to.network == "tcp" {
			loads = append(loads, load(t, node1.Host, to), load(t, s.host(client.Name), to))
		}
	}
	for _, version := range []string{"2", "3"} {
		s.patch("deployment", "web", `{"spec":{"template":{"metadata":{"annotations":{"version":"`+version+`"}}}}}`)
		s.awaitRollout("web")
	}
	new := s.pods("web")
	reaches(t, node1.Host, vips(svc), names(new)...)
	for _, l := range loads {
		tally := l.Stop()
		require.NoError(t, tally.Failed())
		require.Greater(t, tally.Names(), 3, "it was asked all the time: %v", tally.Answers)
	}
}
