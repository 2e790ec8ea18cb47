package kube

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func impatient(c *Config) { c.limits.patience = 20 * time.Millisecond }

func TestAbsentAtStart(t *testing.T) {
	for name, change := range map[string]func(*Config){"streamed": func(*Config) {}, "fetched": fetched} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := web(t)
			b := newRig(t, api, change, impatient, func(c *Config) { c.NodeName = "node-1" }).run()
			b.fact("what is waited for is said", func() bool {
				return b.says("still waiting", "services, endpoints, nodes", "connection refused") == 1
			})
			require.Nil(t, b.tracker.Take(), "nothing is known, so nothing may be torn down")
			require.Equal(t, []string{"services", "endpoints", "nodes"}, b.source.Status().Waiting)
			require.Contains(t, b.source.Status().Error, "connection refused")
			api.listen()
			b.endpoints("default/web", "198.19.0.1:8080")
			b.fact("it is back", func() bool { return b.says("following the Kubernetes API again") == 1 })
			require.Equal(t, 1, b.says("cannot follow"), "%v", b.said())
			require.Empty(t, b.source.Status().Error)
		})
	}
}

// Run ends also while nobody answers.
func TestEndsWithoutAnAPIServer(t *testing.T) {
	t.Parallel()
	b := newRig(t, newAPIServer(t), func(c *Config) { c.limits.backoff.Duration, c.limits.backoff.Cap = time.Hour, time.Hour }).run()
	b.fact("it has tried", func() bool { return b.source.Status().Error != "" })
	b.stop()
}

func TestOutageKeepsWhatIsKnown(t *testing.T) {
	t.Parallel()
	api := web(t)
	b := follow(t, api, impatient)
	b.endpoints("default/web", "198.19.0.1:8080")
	api.set(func() {
		api.refuse = func(w http.ResponseWriter, _ *http.Request, _ string) bool {
			fail(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "etcd is away")
			return true
		}
	})
	api.drop()
	b.fact("the outage is said", func() bool { return b.says("cannot follow", "etcd is away") == 1 })
	b.fact("and that it lasts", func() bool { return b.says("serving what was known last") == 1 })
	b.fact("of every resource it is known since when", func() bool {
		r := b.source.Status().Resources
		return !r[0].Since.IsZero() && !r[1].Since.IsZero()
	})
	require.Empty(t, b.source.Status().Waiting)
	require.Empty(t, b.tracker.Take())

	api.put("endpointslices", slice("web-1", "web", "198.19.0.2"))
	api.put("services", service("db", "198.18.0.2"))
	api.set(func() { api.refuse = nil })
	b.endpoints("default/web", "198.19.0.2:8080")
	b.serves("default/db", "default/web")
	b.fact("it is back", func() bool { return b.says("following the Kubernetes API again") == 1 })
	require.Equal(t, 1, b.says("cannot follow"), "%v", b.said())
	require.Zero(t, b.source.Status().Resources[0].Since)
}

// The watch is cut, history is gone, and a deletion was never told: only the next list shows it.
func TestExpired(t *testing.T) {
	for name, change := range map[string]func(*Config){"streamed": func(*Config) {}, "fetched": fetched} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := web(t)
			api.put("services", service("db", "198.18.0.2"))
			api.put("endpointslices", slice("db-1", "db", "198.19.0.2"))
			b := follow(t, api, change)
			b.serves("default/db", "default/web")
			b.endpoints("default/db", "198.19.0.2:8080")
			b.endpoints("default/web", "198.19.0.1:8080")

			api.remove("services", "default/db", true)
			api.compact()
			api.drop()
			b.serves("default/web")
			require.Equal(t, []string{"default/db"}, b.taken, "listing anew disturbs nobody")
			api.remove("endpointslices", "default/web-1", true)
			api.compact()
			api.drop()
			b.endpoints("default/web")
			require.Equal(t, []string{"default/web"}, b.taken)
			require.Zero(t, b.says("cannot follow"), "that is no outage: %v", b.said())
		})
	}
}

// A server that has every version expired is asked with back-off in between, and what it lists counts.
func TestAlwaysExpired(t *testing.T) {
	t.Parallel()
	api := web(t)
	api.refuse = func(w http.ResponseWriter, _ *http.Request, what string) bool {
		if strings.HasPrefix(what, "watch") {
			fail(w, http.StatusGone, metav1.StatusReasonExpired, "too old resource version")
			return true
		}
		return false
	}
	b := follow(t, api)
	b.endpoints("default/web", "198.19.0.1:8080")
	api.put("endpointslices", slice("web-1", "web", "198.19.0.2"))
	b.endpoints("default/web", "198.19.0.2:8080")
	streams, lists := api.count("watch services", "sendInitialEvents=true"), api.count("list services")
	require.LessOrEqual(t, streams, 3*lists+3, "streams asked for without a pause")
}

func TestForbidden(t *testing.T) {
	for _, verb := range []string{"list", "watch"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			api := web(t)
			var denied atomic.Bool
			denied.Store(true)
			api.refuse = func(w http.ResponseWriter, _ *http.Request, what string) bool {
				if denied.Load() && what == verb+" services" {
					fail(w, http.StatusForbidden, metav1.StatusReasonForbidden, `User "redial" cannot do that`)
					return true
				}
				return false
			}
			b := follow(t, api, fetched)
			said := func() bool {
				return b.says("not allowed to "+verb+" services", `User "redial"`, "ClusterRole system:node-proxier") == 1
			}
			b.fact("who is not allowed what is said", said)
			b.fact("it goes on trying", func() bool { return api.count(verb+" services") > 3 })
			require.True(t, said(), "once: %v", b.said())
			require.Zero(t, b.says("following the Kubernetes API again"), "a list without a watch is not the end of the outage")
			denied.Store(false)
			b.endpoints("default/web", "198.19.0.1:8080")
			b.fact("it is back", func() bool { return b.says("following the Kubernetes API again") == 1 })
		})
	}
}

// Behind an outage that passes by itself there may be one that needs somebody.
func TestForbiddenAfterAbsent(t *testing.T) {
	t.Parallel()
	api := web(t)
	api.refuse = func(w http.ResponseWriter, _ *http.Request, what string) bool {
		if strings.HasSuffix(what, " services") {
			fail(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "who are you?")
			return true
		}
		return false
	}
	b := newRig(t, api, fetched).run()
	b.fact("it is absent", func() bool { return b.says("cannot follow", "connection refused") == 1 })
	api.listen()
	b.fact("it does not know us", func() bool { return b.says("cannot follow", "does not accept the credentials", "kubeconfig") == 1 })
}

// That the server does not answer does not tell what it has.
func TestDiscovery(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter){
		"down": func(w http.ResponseWriter) {
			fail(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "starting")
		},
		// client-go takes this for a very old API server that has no discovery.
		"no API server yet": func(w http.ResponseWriter) {
			fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "not here")
		},
		"cut": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := web(t)
			var ready atomic.Bool
			api.refuse = func(w http.ResponseWriter, _ *http.Request, what string) bool {
				if !ready.Load() && strings.HasPrefix(what, "discover") {
					answer(w)
					return true
				}
				return false
			}
			b := follow(t, api)
			b.fact("it has asked again", func() bool { return api.count("discover ") > 4 })
			require.Empty(t, b.source.Status().EndpointSource)
			require.Contains(t, b.source.Status().Waiting, "endpoints")
			ready.Store(true)
			b.endpoints("default/web", "198.19.0.1:8080")
			require.Equal(t, EndpointsSlices, b.source.Status().EndpointSource)
		})
	}
	t.Run("forbidden", func(t *testing.T) {
		t.Parallel()
		api := web(t)
		api.refuse = func(w http.ResponseWriter, _ *http.Request, what string) bool {
			if strings.HasPrefix(what, "discover") {
				fail(w, http.StatusForbidden, metav1.StatusReasonForbidden, "no")
				return true
			}
			return false
		}
		follow(t, api).endpoints("default/web", "198.19.0.1:8080")
	})
}
