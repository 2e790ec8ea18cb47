package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"
)

// maxScrapes bounds how many scrapes run at a time, without series per Service: a snapshot of 30,000 takes memory.
const maxScrapes = 4

// HandlerConfig is what there is to see besides metrics. Log is needed.
type HandlerConfig struct {
	// Mode is the answer of /proxyMode.
	Mode string
	// Configz returns the effective configuration, which is shown as JSON; kube-proxy's has the one key
	// "kubeproxy.config.k8s.io". It is called for each request. Nil means that there is no /configz.
	Configz func() any
	// Profiling opens /debug/pprof.
	Profiling bool
	Log       *logrus.Entry
}

// Handler answers what kube-proxy's metrics port does: /metrics, /proxyMode, /healthz (which says that this server runs and
// nothing more) and /configz.
func (m *Metrics) Handler(cfg HandlerConfig) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.InstrumentMetricHandler(m.registry, promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog:            errorLog{cfg.Log},
		ErrorHandling:       promhttp.ContinueOnError, // one broken family hides no other
		MaxRequestsInFlight: m.maxScrapes,
		Registry:            m.registry,
	})))
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { text(w, cfg.Mode) })
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { text(w, "ok") })
	if cfg.Configz != nil {
		mux.HandleFunc("/configz", func(w http.ResponseWriter, _ *http.Request) {
			body, err := json.Marshal(cfg.Configz())
			if err != nil {
				http.Error(w, fmt.Sprintf("the configuration cannot be shown: %v", err), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			_, _ = w.Write(body)
		})
	}
	if cfg.Profiling {
		// Named one by one, since importing net/http/pprof only adds them to a mux that nobody serves.
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func text(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = io.WriteString(w, body)
}

// errorLog is what promhttp reports failed scrapes to.
type errorLog struct{ log *logrus.Entry }

func (l errorLog) Println(v ...any) { l.log.Error(append([]any{"collecting metrics: "}, v...)...) }
