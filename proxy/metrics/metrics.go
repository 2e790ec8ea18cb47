package metrics

import (
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"redial/config"
)

// Config is what Metrics are made of. Snapshot is needed.
type Config struct {
	// Version is shown by redial_build_info.
	Version string
	// Families are those that are served; nil means both. What is observed is observed for each, since a sync is one of all.
	Families []config.Family
	// PerService adds 14 series for each Service. They are for clusters of some hundred Services: 30,000 of them take 6 s and
	// 270 MB at each scrape (measured), and a lot to store.
	PerService bool
	// Snapshot is called for each scrape, and for several at a time. It should hold no lock for long.
	Snapshot func() Snapshot
}

// Metrics is a registry of its own, with all of the proxy's families.
type Metrics struct {
	registry   *prometheus.Registry
	maxScrapes int // at a time

	sync, fullSync, partialSync, programming []prometheus.Observer // one for each family
	healthz, livez                           *prometheus.CounterVec
}

// New returns Metrics that can be scraped at once.
func New(cfg Config) *Metrics {
	if cfg.Families == nil {
		cfg.Families = config.Families
	}
	m := &Metrics{registry: prometheus.NewRegistry(), maxScrapes: maxScrapes}
	if cfg.PerService {
		m.maxScrapes = 2 // of a pair of Prometheus servers, both
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newBuildInfo(cfg.Version),
		&collector{snapshot: cfg.Snapshot, perService: cfg.PerService},
	)
	histogram := func(name, help string, buckets []float64) (of []prometheus.Observer) {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubeproxy_" + name, Help: help, Buckets: buckets,
		}, []string{"ip_family"})
		m.registry.MustRegister(h)
		for _, f := range cfg.Families {
			of = append(of, h.WithLabelValues(string(f)))
		}
		return of
	}
	syncBuckets := prometheus.ExponentialBuckets(0.001, 2, 15)
	m.sync = histogram("sync_proxy_rules_duration_seconds", "How long syncs of the rules took.", syncBuckets)
	m.fullSync = histogram("sync_full_proxy_rules_duration_seconds", "How long syncs took that wrote all rules.", syncBuckets)
	m.partialSync = histogram("sync_partial_proxy_rules_duration_seconds", "How long syncs took that wrote changed rules only.", syncBuckets)
	m.programming = histogram("network_programming_duration_seconds",
		"From the change of a Service or pod, as the control plane's clock has it, to its being in force here.", programmingBuckets())
	probes := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubeproxy_" + name, Help: help}, []string{"code"})
		m.registry.MustRegister(c)
		c.WithLabelValues("200")
		c.WithLabelValues("503")
		return c
	}
	m.healthz = probes("proxy_healthz_total", "Answers of /healthz on the health port by status code.")
	m.livez = probes("proxy_livez_total", "Answers of /livez on the health port by status code.")
	return m
}

// programmingBuckets returns kube-proxy's: fine where the objective is, up to five minutes.
func programmingBuckets() []float64 {
	b := []float64{0.25, 0.5}
	for s := 1; s < 60; s++ {
		b = append(b, float64(s))
	}
	for s := 60; s < 120; s += 5 {
		b = append(b, float64(s))
	}
	for s := 120; s <= 300; s += 30 {
		b = append(b, float64(s))
	}
	return b
}

func newBuildInfo(version string) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "redial_build_info", Help: "Always 1; the labels say what is running.",
		ConstLabels: prometheus.Labels{"version": utf8(version), "goversion": runtime.Version()},
	})
	g.Set(1)
	return g
}

// Synced is told of each sync: how long it took, whether all rules were written or changed ones only, and how it ended. As in
// kube-proxy, those that fail count.
func (m *Metrics) Synced(took time.Duration, full bool, _ error) {
	observe(m.sync, took)
	if full {
		observe(m.fullSync, took)
	} else {
		observe(m.partialSync, took)
	}
}

// Programmed is told how long a change took to be in force. Clocks differ between machines: what is negative counts as 0.
func (m *Metrics) Programmed(latency time.Duration) { observe(m.programming, max(0, latency)) }

func observe(families []prometheus.Observer, d time.Duration) {
	for _, f := range families {
		f.Observe(d.Seconds())
	}
}

// Probed is told of each answer of the health server, as health.Config.Probed is; of other endpoints there is no metric.
func (m *Metrics) Probed(endpoint string, code int) {
	switch endpoint {
	case "healthz":
		m.healthz.WithLabelValues(strconv.Itoa(code)).Inc()
	case "livez":
		m.livez.WithLabelValues(strconv.Itoa(code)).Inc()
	}
}
