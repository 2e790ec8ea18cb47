package health

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
	"time"
)

// minTimeout is kube-proxy's: 2 x its sync period of 30 s. Less would have load balancers leave nodes over a slow moment.
const minTimeout = time.Minute

// Proxy is what a Node asks about the proxy.
type Proxy interface {
	// Health returns when all that was wanted was last in force, zero if it has never been, and since when something wanted
	// has been waiting to be, zero if nothing is. It is called for each probe.
	Health() (lastUpdated, pendingSince time.Time)
}

// Config is what a Node is made of. Proxy is needed.
type Config struct {
	Proxy Proxy
	// Leaving says whether the node is about to be removed: it is being deleted, or the cluster autoscaler has tainted it. Nil
	// means that it never is.
	Leaving func() bool
	// Timeout is how long something wanted may be pending before the proxy counts as hung. Less than a minute, and zero, mean
	// a minute.
	Timeout time.Duration
	// Probed is told of each answer: the path without its slash ("healthz", "livez") and the status code. It may be nil.
	Probed func(endpoint string, code int)
}

// Node knows whether the node can take traffic.
type Node struct {
	cfg     Config
	now     func() time.Time
	stopped atomic.Bool
}

// NewNode returns a Node that answers as soon as its Handler is served.
func NewNode(cfg Config) *Node { return newNode(cfg, time.Now) }

func newNode(cfg Config, now func() time.Time) *Node {
	cfg.Timeout = max(cfg.Timeout, minTimeout)
	if cfg.Leaving == nil {
		cfg.Leaving = func() bool { return false }
	}
	if cfg.Probed == nil {
		cfg.Probed = func(string, int) {}
	}
	return &Node{cfg: cfg, now: now}
}

// Stop says that the proxy is shutting down: it is not ready from now on, though alive until it has drained.
func (n *Node) Stop() { n.stopped.Store(true) }

// Ready reports whether the proxy can take new connections: it keeps up, and is not shutting down. A node that is leaving is
// still ready for those Services that have endpoints on it: their pods are what drains it.
func (n *Node) Ready() bool {
	_, healthy := n.proxy(n.now())
	return healthy && !n.stopped.Load()
}

// proxy returns when the proxy was last up to date, and whether it keeps up. It does until it has been up to date for
// the first time, as kube-proxy: otherwise a node would be removed from load balancers, or its proxy restarted, for an
// API server that is not there yet.
func (n *Node) proxy(now time.Time) (lastUpdated time.Time, healthy bool) {
	lastUpdated, pending := n.cfg.Proxy.Health()
	return lastUpdated, lastUpdated.IsZero() || pending.IsZero() || now.Sub(pending) < n.cfg.Timeout
}

// Handler answers GET /healthz and /livez: 200, or 503 and what is wrong.
func (n *Node) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		s := n.state()
		eligible := !n.cfg.Leaving()
		s.NodeEligible = &eligible
		n.answer(w, "healthz", s, s.Healthy && eligible && !s.ShuttingDown)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		s := n.state()
		n.answer(w, "livez", s, s.Healthy)
	})
	return mux
}

// state is the body, with kube-proxy's keys, and shuttingDown added.
type state struct {
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible *bool     `json:"nodeEligible,omitempty"`
	Healthy      bool      `json:"healthy"`
	ShuttingDown bool      `json:"shuttingDown,omitempty"`
}

func (n *Node) state() state {
	s := state{CurrentTime: n.now(), ShuttingDown: n.stopped.Load()}
	s.LastUpdated, s.Healthy = n.proxy(s.CurrentTime)
	return s
}

func (n *Node) answer(w http.ResponseWriter, endpoint string, s state, ok bool) {
	code := http.StatusServiceUnavailable
	if ok {
		code = http.StatusOK
		// In kube-proxy lastUpdated was once the time of the last turn of its loop, and is kept recent while all is well.
		s.LastUpdated = s.CurrentTime
	}
	n.cfg.Probed(endpoint, code)
	reply(w, code, s)
}

// reply writes one answer.
func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	// An error means that the prober has gone; nobody is left to tell.
	_ = json.NewEncoder(w).Encode(body)
}
