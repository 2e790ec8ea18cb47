package kube

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"redial/config"
)

func TestFollows(t *testing.T) {
	for name, change := range map[string]func(*Config){"streamed": func(*Config) {}, "fetched": fetched} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := web(t)
			api.put("services", service("headless", "None"))
			b := follow(t, api, change)
			b.serves("default/web")
			b.endpoints("default/web", "198.19.0.1:8080")
			require.NotContains(t, b.state, "default/headless", "it was not asked for")

			api.put("endpointslices", slice("web-1", "web", "198.19.0.1", "198.19.0.2"))
			b.endpoints("default/web", "198.19.0.1:8080", "198.19.0.2:8080")
			api.put("endpointslices", slice("web-2", "web", "198.19.0.3"))
			api.remove("endpointslices", "default/web-1", false)
			b.endpoints("default/web", "198.19.0.3:8080")

			api.put("services", service("db", "198.18.0.2"))
			b.serves("default/db", "default/web")
			require.EqualValues(t, "uid-db", b.source.UID(config.ServiceName{Namespace: "default", Name: "db"}))
			// A label that takes the Service out of the selection is a deletion, and back.
			api.put("services", service("db", "198.18.0.2", labelServiceProxyName+"=other"))
			b.serves("default/web")
			api.put("services", service("db", "198.18.0.2"))
			b.serves("default/db", "default/web")
			// This one concerns its slices, which have it too: the Service is to refuse its clients.
			api.put("services", service("db", "198.18.0.2", v1.IsHeadlessService+"="))
			b.serves("default/db", "default/web")
			api.remove("services", "default/db", false)
			b.serves("default/web")
			api.remove("services", "default/web", false)
			b.serves()
			require.Empty(t, b.source.UID(config.ServiceName{Namespace: "default", Name: "web"}))

			b.fact("all is well", func() bool { return b.source.Status().Error == "" })
			status := b.source.Status()
			require.Empty(t, status.Waiting)
			require.Equal(t, EndpointsSlices, status.EndpointSource)
			require.Equal(t, "endpointslices", status.Resources[1].Resource)
			require.Equal(t, 1, status.Resources[1].Objects)
			require.NotZero(t, status.Resources[1].Listed)
			require.False(t, status.Resources[1].Event.Before(status.Resources[1].Listed))
			require.Equal(t, name == "streamed", api.count("sendInitialEvents=true") > 0)
			require.Equal(t, name == "fetched", api.count("list services") > 0)
			require.Contains(t, api.accept, "protobuf")
			require.Contains(t, api.accept, "json")
			require.Equal(t, 1, b.says("endpoints come from"))
			require.Zero(t, b.says("warning"))
		})
	}
}

// The Tracker is complete only when the last object has been handed over, however slowly that goes.
func TestFirstTakeHasEverything(t *testing.T) {
	const n = 5000
	for name, change := range map[string]func(*Config){"streamed": func(*Config) {}, "fetched": fetched} {
		t.Run(name, func(t *testing.T) {
			api := newAPIServer(t)
			for i := range n {
				name := fmt.Sprintf("s%d", i)
				api.put("services", service(name, fmt.Sprintf("198.18.%d.%d", i/250, i%250+1)))
				api.put("endpointslices", slice(name+"-1", name, "198.19.0.1"))
			}
			api.listen()
			b := newRig(t, api, change)
			slow, goOn := make(chan struct{}), make(chan struct{})
			set, handed := b.source.services.set, 0
			b.source.services.set = func(o any) error {
				if handed++; handed == n/2 {
					close(slow)
					<-goOn
				}
				return set(o)
			}
			b.run()
			<-slow
			b.fact("the endpoints are here", func() bool { return len(b.source.Status().Waiting) == 1 })
			require.Nil(t, b.tracker.Take(), "half of the Services are not here")
			require.Equal(t, []string{"services"}, b.source.Status().Waiting)
			close(goOn)
			<-b.tracker.Changed()
			changes := b.tracker.Take()
			require.Len(t, changes, n)
			for _, s := range changes {
				require.Len(t, s.Ports[0].Endpoints, 1)
			}
		})
	}
}

func TestSelectors(t *testing.T) {
	t.Parallel()
	others, headless := "!service.kubernetes.io/service-proxy-name", "!service.kubernetes.io/headless"
	for _, c := range []struct{ name, services, endpoints string }{
		{"", others, headless},
		{"mine", "service.kubernetes.io/service-proxy-name=mine", headless},
	} {
		for _, source := range []string{EndpointsSlices, EndpointsLegacy} {
			t.Run(source+c.name, func(t *testing.T) {
				t.Parallel()
				api := newAPIServer(t)
				api.put("services", service("web", "198.18.0.1", "service.kubernetes.io/service-proxy-name=mine"))
				api.listen()
				b := newRig(t, api, fetched, func(cfg *Config) {
					cfg.ServiceProxyName, cfg.EndpointSource, cfg.NodeName = c.name, source, "node-1"
				})
				b.run()
				<-b.tracker.Changed()
				require.Equal(t, c.name != "", b.source.UID(config.ServiceName{Namespace: "default", Name: "web"}) != "")
				b.fact("all are watched", func() bool {
					return api.count("watch services") > 0 && api.count("watch "+source) > 0 && api.count("watch nodes") > 0
				})
				for _, verb := range []string{"list ", "watch "} {
					require.Positive(t, api.count(verb+"services", "&labelSelector="+c.services+"&"), "%v", api.requests)
					require.Positive(t, api.count(verb+"services", "fieldSelector=spec.clusterIP!=None&"))
					require.Positive(t, api.count(verb+source, "labelSelector="+c.endpoints+"&"), "%v", api.requests)
					require.Positive(t, api.count(verb+"nodes", "fieldSelector=metadata.name=node-1&"))
				}
				require.Zero(t, api.count("discover"), "nothing was to be found out")
				other := map[string]string{EndpointsSlices: "list endpoints ", EndpointsLegacy: "endpointslices"}[source]
				require.Zero(t, api.count(other))
			})
		}
	}
}

func TestLegacyEndpoints(t *testing.T) {
	t.Parallel()
	api := web(t)
	api.noSlices = true
	//lint:ignore SA1019 it is what old API servers have
	eps := &v1.Endpoints{Subsets: []v1.EndpointSubset{{
		Addresses: []v1.EndpointAddress{{IP: "198.19.0.7"}}, Ports: []v1.EndpointPort{{Name: "http", Port: 8080}},
	}}}
	eps.TypeMeta, eps.ObjectMeta = meta1("Endpoints", "v1", "web")
	api.put("endpoints", eps)
	b := follow(t, api)
	b.endpoints("default/web", "198.19.0.7:8080")
	require.Equal(t, EndpointsLegacy, b.source.Status().EndpointSource)
	require.Equal(t, 1, b.says("endpoints come from", "resource:endpoints]"))
	api.remove("endpoints", "default/web", false)
	b.endpoints("default/web")
}

// client-go's fake has no streamed lists, and says so.
func TestFakeClientset(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t)
	client := fake.NewClientset(service("web", "198.18.0.1"), slice("web-1", "web", "198.19.0.1"),
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}})
	b := newRig(t, api, func(cfg *Config) {
		cfg.Client, cfg.NodeName, cfg.EndpointSource = client, "node-1", EndpointsSlices
	}).run()
	b.endpoints("default/web", "198.19.0.1:8080")
	b.fact("the node is found", func() bool { return b.source.Status().Node == NodeFound })
	_, err := client.CoreV1().Services("default").Create(t.Context(), service("db", "198.18.0.2"), metav1.CreateOptions{})
	require.NoError(t, err)
	b.serves("default/db", "default/web")
}

// When Run has returned, nothing of it goes on.
func TestRunEndsWhole(t *testing.T) {
	for name, at := range map[string]func() *rig{
		"served": func() *rig {
			b := follow(t, web(t), func(c *Config) { c.NodeName = "node-1" })
			b.endpoints("default/web", "198.19.0.1:8080")
			return b
		},
		"absent": func() *rig {
			b := newRig(t, newAPIServer(t)).run()
			b.fact("it has tried", func() bool { return b.source.Status().Error != "" })
			return b
		},
	} {
		at().stop()
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		for _, part := range []string{"(*feed).run", "(*stream).relay", "(*Source).followEndpoints"} {
			require.NotContains(t, string(stacks), "kube."+part, name)
		}
	}
}
