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

func TestServerWithoutTheFieldSelector(t *testing.T) {
	for _, streaming := range []string{"", "refuse"} {
		t.Run("streaming "+streaming, func(t *testing.T) {
			t.Parallel()
			api := web(t)
			api.plain, api.streaming = true, streaming
			api.put("services", service("headless", "None"))
			b := follow(t, api)
			b.serves("default/web")
			require.Contains(t, b.state, "default/headless", "it was asked for, and skipped")
			tried := api.count("services", "spec.clusterIP")
			require.Positive(t, tried)
			api.put("services", service("db", "198.18.0.2"))
			b.serves("default/db", "default/web")
			api.compact()
			api.drop()
			api.put("services", service("x", "198.18.0.3"))
			b.serves("default/db", "default/web", "default/x")
			require.LessOrEqual(t, api.count("services", "spec.clusterIP"), tried+1, "it is not tried for ever")
			require.Equal(t, 1, b.says("does not know the field selector"))
			require.Zero(t, b.says("cannot follow"))
		})
	}
}

// What is refused with and without the selector was not refused because of it.
func TestBadRequestOfAnotherKind(t *testing.T) {
	t.Parallel()
	api := web(t)
	var refused atomic.Int32
	api.refuse = func(w http.ResponseWriter, _ *http.Request, what string) bool {
		// Twice with and twice without.
		if what == "list services" && refused.Add(1) <= 4 {
			fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "bad day")
			return true
		}
		return false
	}
	b := follow(t, api, fetched)
	b.fact("it is said", func() bool { return b.says("cannot follow", "bad day") == 1 })
	b.serves("default/web")
	require.Zero(t, b.says("does not know the field selector"))
}

// Servers before Kubernetes 1.27 ignore the wish for a streamed list: the watch opens, and its list never ends.
func TestServerThatIgnoresStreaming(t *testing.T) {
	t.Parallel()
	api := web(t)
	api.streaming = "ignore"
	b := follow(t, api, func(c *Config) { c.limits.initial = 20 * time.Millisecond })
	b.endpoints("default/web", "198.19.0.1:8080")
	require.Equal(t, 1, b.says("fetching lists from now on", "resource:services", "KUBE_FEATURE_WatchListClient=false"))
	streamed := api.count("services", "sendInitialEvents=true")
	api.compact()
	api.drop()
	api.put("services", service("db", "198.18.0.2"))
	b.serves("default/db", "default/web")
	require.Equal(t, streamed, api.count("services", "sendInitialEvents=true"), "once is enough")
	require.Zero(t, b.says("cannot follow"))
}

func TestServerThatRefusesStreaming(t *testing.T) {
	t.Parallel()
	api := web(t)
	api.streaming = "refuse"
	b := follow(t, api)
	b.endpoints("default/web", "198.19.0.1:8080")
	require.Zero(t, b.says("warning"), "that is ordinary: %v", b.said())
}

// A stream that is cut, or fails, before the end of its list gives way to a list.
func TestStreamThatFails(t *testing.T) {
	for name, answer := range map[string]string{
		"cut":     ``,
		"busy":    `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":429,"reason":"TooManyRequests"}}`,
		"expired": `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := web(t)
			api.refuse = func(w http.ResponseWriter, r *http.Request, what string) bool {
				if r.URL.Query().Get("sendInitialEvents") == "" {
					return false
				}
				_, _ = w.Write([]byte(`{"type":"ADDED","object":{"kind":"Service","apiVersion":"v1","metadata":{"name":"half"}}}` + answer))
				return true
			}
			b := follow(t, api, func(c *Config) { c.limits.backoff.Duration, c.limits.backoff.Cap = time.Hour, time.Hour })
			b.serves("default/web")
			require.Equal(t, 1, api.count("services", "sendInitialEvents=true"))
			require.NotContains(t, b.state, "/half")
		})
	}
}

// The connection lives, the server does not: nothing comes, not even bookmarks.
func TestSilentWatch(t *testing.T) {
	for name, change := range map[string]func(*Config){"streamed": func(*Config) {}, "fetched": fetched} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := web(t)
			b := follow(t, api, change, func(c *Config) { c.limits.silence = 300 * time.Millisecond })
			b.endpoints("default/web", "198.19.0.1:8080")
			api.freeze()
			api.put("endpointslices", slice("web-1", "web", "198.19.0.2"))
			b.endpoints("default/web", "198.19.0.2:8080")
			require.Zero(t, b.says("warning"), "%v", b.said())
		})
	}
}

// No answer at all, to whatever is asked first.
func TestHangs(t *testing.T) {
	for _, verb := range []string{"list", "watch"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			api := web(t)
			var hung atomic.Int32
			api.refuse = func(_ http.ResponseWriter, r *http.Request, what string) bool {
				if strings.HasPrefix(what, verb+" ") && hung.Add(1) <= 2 {
					<-r.Context().Done()
					return true
				}
				return false
			}
			b := follow(t, api, func(c *Config) {
				fetched(c)
				c.limits.list, c.limits.silence = time.Second, time.Second
			})
			b.fact("it is said", func() bool { return b.says("cannot follow", "to "+verb, "no answer within 1s") == 1 })
			api.put("services", service("db", "198.18.0.2"))
			b.serves("default/db", "default/web")
		})
	}
}
