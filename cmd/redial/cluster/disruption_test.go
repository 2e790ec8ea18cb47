package cluster

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ownNode is a node for one test, whose proxy that may do anything to.
func ownNode(t *testing.T, name string, flags ...string) *Node {
	t.Helper()
	node, err := shared.AddNode(t.Context(), NodeConfig{Name: name, Reserved: true})
	require.NoError(t, err)
	require.NoError(t, node.StartProxy(flags...))
	t.Cleanup(node.StopProxy)
	return node
}

// The API server is everybody's, so this runs beside nothing.
func TestAPIServerAway(t *testing.T) {
	s := newSpace(t)
	svc := s.service("web")
	s.deploy("web", 2)
	client := s.host(s.pod("client").Name)
	pods := s.pods("web")
	reaches(t, node1.Host, vips(svc), names(pods)...)
	to := vips(svc)[0]
	loads := []*Load{load(t, node1.Host, to), load(t, client, to)}
	shared.StopAPI()
	// No longer watched, the pods still are as they were, and so is the Service.
	reaches(t, client, vips(svc), names(pods)...)
	require.NoError(t, shared.StartAPI(t.Context()))
	for _, l := range loads {
		require.NoError(t, l.Stop().Failed())
	}
	s.scale("web", 3)
	reaches(t, client, vips(svc), names(s.pods("web"))...)
	after := s.service("after", func(svc *v1.Service) { svc.Spec.Selector["app"] = "web" })
	reaches(t, client, vips(after), names(s.pods("web"))...)
}

func TestProxyRestarts(t *testing.T) {
	s := parallel(t)
	node := ownNode(t, "restarts")
	svc := s.service("web", ofType(v1.ServiceTypeNodePort))
	s.deploy("web", 2)
	gone := s.service("gone", func(svc *v1.Service) { svc.Spec.Selector["app"] = "web" })
	pods := names(s.pods("web"))
	reaches(t, node.Host, append(vips(svc), vips(gone)...), pods...)
	for _, end := range []func(){node.StopProxy, node.KillProxy} {
		end()
		require.NoError(t, node.StartProxy())
		reaches(t, node.Host, vips(svc), pods...)
		reaches(t, shared.Outside, nodePorts(svc, node), pods...)
	}
	// What was deleted while the proxy was away has to go too.
	node.StopProxy()
	s.deleteService("gone")
	require.NoError(t, node.StartProxy())
	reaches(t, node.Host, vips(svc), pods...)
	isUnserved(t, node.Host, vips(gone))
}

func TestRulesThatOthersRemove(t *testing.T) {
	s := parallel(t)
	if !node1.IsRedial() {
		t.Skip("kube-proxy has other chains, and another period")
	}
	node := ownNode(t, "flushed")
	svc := s.service("web", ofType(v1.ServiceTypeNodePort))
	s.deploy("web", 2)
	pods := names(s.pods("web"))
	reaches(t, node.Host, vips(svc), pods...)
	for _, iptables := range []string{"iptables", "ip6tables"} {
		_, err := node.Host.Output(iptables, "-w", "-t", "nat", "-F")
		require.NoError(t, err)
	}
	reaches(t, node.Host, vips(svc), pods...)
	reaches(t, shared.Outside, nodePorts(svc, node), pods...)
}

// To try redial in a cluster, without taking anything over: it serves only the Services that name it.
func TestServiceProxyName(t *testing.T) {
	s := parallel(t)
	if !node1.IsRedial() {
		t.Skip("kube-proxy has no such flag")
	}
	node := ownNode(t, "trial", "--service-proxy-name", "redial")
	ours := s.service("ours", withLabel("service.kubernetes.io/service-proxy-name", "redial"), func(svc *v1.Service) { svc.Spec.Selector["app"] = "web" })
	others := s.service("others", func(svc *v1.Service) { svc.Spec.Selector["app"] = "web" })
	s.pod("web")
	reaches(t, node.Host, vips(ours), "web")
	reaches(t, node1.Host, vips(others), "web")
	isUnserved(t, node.Host, vips(others))
	isUnserved(t, node1.Host, vips(ours))
	s.patch("service", "ours", `{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":null}}}`)
	reaches(t, node1.Host, vips(ours), "web")
	isUnserved(t, node.Host, vips(ours))
}

func TestProxyURLs(t *testing.T) {
	parallel(t)
	for _, url := range []string{"http://" + node1.Addrs[0].String() + ":10256/healthz", "http://[" + node1.Addrs[1].String() + "]:10256/healthz"} {
		eventually(t, url, func() error {
			code, body, err := get(shared.Outside, url)
			if err != nil {
				return err
			}
			var health struct {
				LastUpdated  time.Time `json:"lastUpdated"`
				CurrentTime  time.Time `json:"currentTime"`
				NodeEligible *bool     `json:"nodeEligible"`
			}
			if err := json.Unmarshal([]byte(body), &health); err != nil {
				return fmt.Errorf("%s: %w", body, err)
			}
			if code != 200 || health.LastUpdated.IsZero() || health.CurrentTime.IsZero() || health.NodeEligible == nil || !*health.NodeEligible {
				return fmt.Errorf("%d %s", code, body)
			}
			return nil
		})
	}
	for _, url := range []string{"http://" + node1.Addrs[0].String() + ":10256/livez", "http://127.0.0.1:10249/proxyMode", "http://127.0.0.1:10249/healthz"} {
		code, body, err := get(node1.Host, url)
		require.NoError(t, err, url)
		assert.Equal(t, 200, code, "%s: %s", url, body)
		assert.NotEmpty(t, body, url)
	}
	_, metrics, err := get(node1.Host, "http://127.0.0.1:10249/metrics")
	require.NoError(t, err)
	for _, name := range []string{"kubeproxy_sync_proxy_rules_last_timestamp_seconds", "kubeproxy_sync_proxy_rules_duration_seconds_count"} {
		assert.True(t, strings.Contains(metrics, name), name)
	}
}

// A node that the autoscaler is about to delete is to get no more traffic from balancers.
func TestNodeAboutToBeDeleted(t *testing.T) {
	parallel(t)
	node := ownNode(t, "doomed")
	url := "http://" + node.Addrs[0].String() + ":10256/healthz"
	says := func(code int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s says %d", url, code), func() error {
			got, _, err := get(shared.Outside, url)
			if err == nil && got != code {
				err = fmt.Errorf("it says %d", got)
			}
			return err
		})
	}
	says(200)
	object, err := shared.Client.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})
	require.NoError(t, err)
	object.Spec.Taints = append(object.Spec.Taints, v1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Value: "1", Effect: v1.TaintEffectNoSchedule})
	_, err = shared.Client.CoreV1().Nodes().Update(t.Context(), object, metav1.UpdateOptions{})
	require.NoError(t, err)
	says(503)
}
