package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// collector makes metrics of a Snapshot for each scrape.
type collector struct {
	snapshot   func() Snapshot
	perService bool
}

// Describe is part of prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range described {
		ch <- f.desc
	}
}

// Collect is part of prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.snapshot()
	e := emit(func(m prometheus.Metric) { ch <- m })
	e.kubeProxy(&s)
	e.syncs(&s)
	e.traffic(&s)
	e.limits(&s)
	e.balancers(&s.Balancers)
	e.services(&s)
	if c.perService {
		for i := range s.Services {
			e.service(&s.Services[i])
		}
	}
}

// family is one family whose values are read at each scrape.
type family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// described lists all, in the order in which they are declared.
var described []*family

func gauge(name, help string, labels ...string) *family {
	return describe(prometheus.GaugeValue, name, help, labels)
}

func counter(name, help string, labels ...string) *family {
	return describe(prometheus.CounterValue, name, help, labels)
}

func describe(kind prometheus.ValueType, name, help string, labels []string) *family {
	f := &family{prometheus.NewDesc(name, help, labels, nil), kind}
	described = append(described, f)
	return f
}

// emit takes the metrics of one scrape.
type emit func(prometheus.Metric)

type number interface {
	~int | ~int64 | ~uint64 | ~float64
}

// set emits the value of one series. Values of labels have to be UTF-8, which names from manifests need not be: pass
// them through utf8.
func set[N number](e emit, f *family, value N, labels ...string) {
	e(prometheus.MustNewConstMetric(f.desc, f.kind, float64(value), labels...))
}

// setTime emits the seconds since 1970; nothing for the zero time.
func setTime(e emit, f *family, t time.Time, labels ...string) {
	if !t.IsZero() {
		set(e, f, float64(t.UnixNano())/1e9, labels...)
	}
}

// setBool emits 1 for true.
func setBool(e emit, f *family, value bool, labels ...string) {
	n := 0
	if value {
		n = 1
	}
	set(e, f, n, labels...)
}

func utf8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
