package metrics

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func serve(t *testing.T, cfg HandlerConfig) (get func(path string) (code int, contentType, body string)) {
	t.Helper()
	log, _ := logtest.NewNullLogger()
	cfg.Log = logrus.NewEntry(log)
	srv := httptest.NewServer(New(Config{Version: "v1.2.3", Snapshot: everything}).Handler(cfg))
	t.Cleanup(srv.Close)
	return func(path string) (int, string, string) {
		resp, err := http.Get(srv.URL + path)
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, resp.Header.Get("Content-Type"), string(body)
	}
}

func TestHandler(t *testing.T) {
	t.Parallel()
	type effective struct {
		Mode string `json:"mode"`
	}
	get := serve(t, HandlerConfig{
		Mode:    "userspace",
		Configz: func() any { return map[string]any{"kubeproxy.config.k8s.io": effective{Mode: "userspace"}} },
	})
	code, contentType, body := get("/metrics")
	assert.Equal(t, 200, code)
	assert.Contains(t, contentType, "text/plain")
	assert.Contains(t, body, "\nkubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 102\n")
	assert.Contains(t, body, `version="v1.2.3"`)
	assert.Contains(t, body, "\nprocess_open_fds ")
	assert.NotContains(t, body, "promhttp_metric_handler_errors_total{cause=\"gathering\"} 1")

	code, contentType, body = get("/proxyMode")
	assert.Equal(t, 200, code)
	assert.Equal(t, "text/plain; charset=utf-8", contentType)
	assert.Equal(t, "userspace", body)

	code, _, body = get("/healthz")
	assert.Equal(t, 200, code)
	assert.Equal(t, "ok", body)

	code, contentType, body = get("/configz")
	assert.Equal(t, 200, code)
	assert.Equal(t, "application/json", contentType)
	assert.JSONEq(t, `{"kubeproxy.config.k8s.io":{"mode":"userspace"}}`, body)

	for _, path := range []string{"/", "/debug/pprof/", "/debug/pprof/heap"} {
		code, _, _ = get(path)
		assert.Equal(t, 404, code, path)
	}
}

func TestProfiling(t *testing.T) {
	t.Parallel()
	get := serve(t, HandlerConfig{Profiling: true})
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/cmdline", "/debug/pprof/symbol"} {
		code, _, _ := get(path)
		assert.Equal(t, 200, code, path)
	}
	code, _, _ := get("/configz")
	assert.Equal(t, 404, code, "there is none")
}

func TestConfigzThatCannotBeShown(t *testing.T) {
	t.Parallel()
	get := serve(t, HandlerConfig{Configz: func() any { return make(chan int) }})
	code, _, body := get("/configz")
	assert.Equal(t, 500, code)
	assert.Contains(t, body, "cannot be shown")
}

// Scrapers that ask faster than they are answered are turned away rather than piled up.
func TestScrapesAreBounded(t *testing.T) {
	t.Parallel()
	inside, release := make(chan struct{}), make(chan struct{})
	log, _ := logtest.NewNullLogger()
	m := New(Config{Snapshot: func() Snapshot { inside <- struct{}{}; <-release; return Snapshot{} }})
	srv := httptest.NewServer(m.Handler(HandlerConfig{Log: logrus.NewEntry(log)}))
	defer srv.Close()
	codes := make(chan int, maxScrapes)
	for range maxScrapes {
		go func() {
			resp, err := http.Get(srv.URL + "/metrics")
			if !assert.NoError(t, err) {
				codes <- 0
				return
			}
			resp.Body.Close()
			codes <- resp.StatusCode
		}()
	}
	for range maxScrapes {
		<-inside
	}
	resp, err := http.Get(srv.URL + "/metrics")
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	close(release)
	for range maxScrapes {
		assert.Equal(t, http.StatusOK, <-codes)
	}
}
