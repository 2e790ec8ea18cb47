package health

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeProxy is a Proxy, and the clock with it.
type fakeProxy struct {
	mu                         sync.Mutex
	lastUpdated, pending, time time.Time
	leaving                    bool
}

func (p *fakeProxy) Health() (lastUpdated, pendingSince time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lastUpdated, p.pending
}

func (p *fakeProxy) now() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.time
}

func (p *fakeProxy) isLeaving() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.leaving
}

func (p *fakeProxy) set(change func(*fakeProxy)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

type probe struct {
	endpoint string
	code     int
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func get(t *testing.T, url string) (code int, header http.Header, body map[string]any) {
	t.Helper()
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	if resp.StatusCode != http.StatusNotFound {
		require.NoError(t, json.Unmarshal(raw, &body), "%s", raw)
	}
	return resp.StatusCode, resp.Header, body
}

func TestNode(t *testing.T) {
	t.Parallel()
	const at = "2026-01-02T03:04:05Z"
	updated := epoch.Add(-time.Hour)
	for name, c := range map[string]struct {
		lastUpdated, pending time.Time
		leaving, stopped     bool
		timeout              time.Duration
		healthz, livez       int
		ready                bool
		reported             string // lastUpdated in the body of /livez
	}{
		"starting":                     {healthz: 200, livez: 200, ready: true, reported: at},
		"starting, waiting for long":   {pending: epoch.Add(-time.Hour), healthz: 200, livez: 200, ready: true, reported: at},
		"up to date":                   {lastUpdated: updated, healthz: 200, livez: 200, ready: true, reported: at},
		"pending":                      {lastUpdated: updated, pending: epoch.Add(-59 * time.Second), healthz: 200, livez: 200, ready: true, reported: at},
		"pending for too long":         {lastUpdated: updated, pending: epoch.Add(-time.Minute), healthz: 503, livez: 503, reported: "2026-01-02T02:04:05Z"},
		"a minute is the least":        {timeout: time.Second, lastUpdated: updated, pending: epoch.Add(-59 * time.Second), healthz: 200, livez: 200, ready: true, reported: at},
		"more can be asked for":        {timeout: 2 * time.Minute, lastUpdated: updated, pending: epoch.Add(-119 * time.Second), healthz: 200, livez: 200, ready: true, reported: at},
		"more is no more than that":    {timeout: 2 * time.Minute, lastUpdated: updated, pending: epoch.Add(-120 * time.Second), healthz: 503, livez: 503, reported: "2026-01-02T02:04:05Z"},
		"the node is leaving":          {lastUpdated: updated, leaving: true, healthz: 503, livez: 200, ready: true, reported: at},
		"leaving while starting":       {leaving: true, healthz: 503, livez: 200, ready: true, reported: at},
		"the proxy is leaving":         {lastUpdated: updated, stopped: true, healthz: 503, livez: 200, reported: at},
		"leaving and pending too long": {lastUpdated: updated, leaving: true, pending: epoch.Add(-time.Hour), healthz: 503, livez: 503, reported: "2026-01-02T02:04:05Z"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &fakeProxy{lastUpdated: c.lastUpdated, pending: c.pending, leaving: c.leaving, time: epoch}
			var probes []probe
			n := newNode(Config{
				Proxy: p, Leaving: p.isLeaving, Timeout: c.timeout,
				Probed: func(endpoint string, code int) { probes = append(probes, probe{endpoint, code}) },
			}, p.now)
			srv := httptest.NewServer(n.Handler())
			defer srv.Close()
			if c.stopped {
				n.Stop()
			}
			assert.Equal(t, c.ready, n.Ready())

			code, header, body := get(t, srv.URL+"/healthz")
			assert.Equal(t, c.healthz, code)
			assert.Equal(t, "application/json", header.Get("Content-Type"))
			assert.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
			assert.Equal(t, at, body["currentTime"])
			assert.Equal(t, !c.leaving, body["nodeEligible"])
			assert.Contains(t, body, "lastUpdated")

			code, header, body = get(t, srv.URL+"/livez")
			assert.Equal(t, c.livez, code)
			assert.Equal(t, "application/json", header.Get("Content-Type"))
			assert.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
			assert.Equal(t, c.reported, body["lastUpdated"])
			assert.Equal(t, c.livez == 200, body["healthy"])
			assert.NotContains(t, body, "nodeEligible", "livez is not about the node")
			if c.stopped {
				assert.Equal(t, true, body["shuttingDown"])
			} else {
				assert.NotContains(t, body, "shuttingDown")
			}

			code, _, _ = get(t, srv.URL+"/")
			assert.Equal(t, 404, code)
			srv.Close()
			assert.Equal(t, []probe{{"healthz", c.healthz}, {"livez", c.livez}}, probes)
		})
	}
}

func TestNodeRecovers(t *testing.T) {
	t.Parallel()
	p := &fakeProxy{lastUpdated: epoch, pending: epoch, time: epoch.Add(time.Hour)}
	n := newNode(Config{Proxy: p, Leaving: p.isLeaving}, p.now)
	srv := httptest.NewServer(n.Handler())
	defer srv.Close()
	code, _, _ := get(t, srv.URL+"/healthz")
	assert.Equal(t, 503, code)
	p.set(func(p *fakeProxy) { p.pending, p.lastUpdated = time.Time{}, p.time })
	code, _, _ = get(t, srv.URL+"/healthz")
	assert.Equal(t, 200, code)
	p.set(func(p *fakeProxy) { p.leaving = true })
	code, _, _ = get(t, srv.URL+"/healthz")
	assert.Equal(t, 503, code)
	p.set(func(p *fakeProxy) { p.leaving = false })
	code, _, _ = get(t, srv.URL+"/healthz")
	assert.Equal(t, 200, code, "a taint can be taken back")
}

// Only the needed is needed, and probes may use any method, as those of some load balancers do.
func TestNodeWithTheLeast(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(NewNode(Config{Proxy: &fakeProxy{}}).Handler())
	defer srv.Close()
	for _, method := range []string{"HEAD", "POST", "OPTIONS"} {
		req, err := http.NewRequest(method, srv.URL+"/healthz", strings.NewReader(""))
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, 200, resp.StatusCode, method)
	}
}
