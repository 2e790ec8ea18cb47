package main

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"redial/config"
	"redial/iptables"
	"redial/proxy"
	"redial/proxy/health"
	"redial/proxy/metrics"
	"redial/proxy/relay"
	"redial/proxy/server"
)

// servers are what others ask over HTTP: whether the node serves, whether it has endpoints of a Service, and the metrics.
type servers struct {
	node     *health.Node
	services *health.Services
	metrics  *metrics.Metrics
	opts     *options
	log      *logrus.Entry
}

// healthTimeout is how long a change of the rules may be pending before the node counts as unhealthy: kube-proxy's twice the
// sync period, which it has at 30 s, and never less, since ours is a matter of seconds.
func (o *options) healthTimeout() time.Duration { return max(2*o.syncPeriod, time.Minute) }

// newServers makes what n is asked for. The functions are called only once n is complete.
func newServers(n *node) *servers {
	s := &servers{opts: n.opts, log: n.log}
	s.metrics = metrics.New(metrics.Config{Version: version, PerService: n.opts.serviceMetrics, Snapshot: n.snapshot})
	s.node = health.NewNode(health.Config{
		Proxy:   proxyHealth{n},
		Leaving: func() bool { return n.tracker.Node().Leaving },
		Timeout: n.opts.healthTimeout(),
		Probed:  s.metrics.Probed,
	})
	s.services = health.NewServices(health.ServicesConfig{
		Healthy:   s.node.Ready,
		NodePorts: func() []netip.Prefix { return n.nodePorts.Prefixes(n.tracker.Node()) },
		Log:       n.log,
	})
	return s
}

// run serves until ctx ends. An error is an address that cannot be listened at, where that is to end the process.
func (s *servers) run(ctx context.Context) error {
	var running sync.WaitGroup
	var mu sync.Mutex
	var failed error
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	serve := func(name string, at netip.AddrPort, handler http.Handler) {
		if !at.IsValid() {
			return
		}
		running.Go(func() {
			srv := server.New(server.Config{Name: name, Addr: at.String(), Handler: handler, HardFail: s.opts.bindHardFail, Log: s.log})
			if err := srv.Run(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = err
				stop()
			}
		})
	}
	serve("health", s.opts.healthz, s.node.Handler())
	serve("metrics", s.opts.metrics, s.metrics.Handler(metrics.HandlerConfig{
		Mode: "userspace", Configz: s.opts.configz(), Profiling: s.opts.profiling, Log: s.log,
	}))
	<-ctx.Done()
	running.Wait()
	s.services.Close()
	return failed
}

// proxyHealth is the Proxier's health in the words of package health.
type proxyHealth struct{ *node }

func (n proxyHealth) Health() (lastUpdated, pendingSince time.Time) {
	h := n.proxier.Health()
	return h.LastUpdated, h.PendingSince
}

// healthChecks answers the health checks of Services in the words of package proxy.
type healthChecks struct{ *health.Services }

// Sync implements proxy.HealthChecks.
func (h healthChecks) Sync(want []proxy.HealthCheck) []proxy.HealthCheckError {
	checks := make([]health.Check, len(want))
	for i, w := range want {
		checks[i] = health.Check(w)
	}
	var errs []proxy.HealthCheckError
	for _, e := range h.Services.Sync(checks) {
		errs = append(errs, proxy.HealthCheckError{Service: e.Check.Service, Err: &e})
	}
	return errs
}

// snapshot is what one scrape shows.
func (n *node) snapshot() metrics.Snapshot {
	sum, totals := n.proxier.Summary(n.opts.serviceMetrics), n.relay.Totals()
	s := metrics.Snapshot{
		LastQueued: sum.Sync.Queued, LastSynced: sum.Sync.LastSuccess, Delivered: sum.Sync.Delivered,
		SyncFailures:   sum.Sync.Failures,
		ServiceChanges: sum.Sync.ServiceChanges, EndpointChanges: sum.Sync.EndpointChanges,
		PendingServiceChanges: int(sum.Sync.PendingServiceChanges), PendingEndpointChanges: int(sum.Sync.PendingEndpointChanges),
		SourceSynced: n.sourceSynced(), LastEvent: n.lastEvent(),
		Families: map[config.Family]metrics.Family{},
		Serving:  sum.Serving, Refusing: sum.Refusing, Shared: sum.Shared,
		Limits: metrics.Limits(n.relay.Usage()), Lag: n.relay.Lag(time.Second),
		Balancers: metrics.Balancers(sum.Balancer),
		TCP:       trafficOf(totals.TCP), UDP: trafficOf(totals.UDP),
	}
	for _, family := range config.Families {
		s.Families[family] = metrics.Family{}
	}
	if n.steer.rules != nil {
		stats := n.steer.rules.Stats()
		s.Families[config.IPv4], s.Families[config.IPv6] = rulesOf(stats.IPv4), rulesOf(stats.IPv6)
	}
	for family := range n.steer.routed {
		s.Families[family] = metrics.Family{Broken: n.steer.routes.Stats().Of(family == config.IPv6).Err != nil}
	}
	for _, local := range sum.Sync.NoLocal {
		f := s.Families[local.Family]
		f.NoLocalInternal, f.NoLocalExternal = local.Internal, local.External
		s.Families[local.Family] = f
	}
	s.Services = make([]metrics.Service, len(sum.Services))
	for i, svc := range sum.Services {
		s.Services[i] = metrics.Service{
			Name: svc.Name, Skipped: svc.Skipped, Problems: svc.Problems,
			Ready: svc.Ready, Terminating: svc.Terminating, Unused: svc.Unused, Ejected: svc.Ejected, Waiting: svc.Waiting,
		}
		if svc.Stats != nil {
			traffic := trafficOf(*svc.Stats)
			s.Services[i].Traffic = &traffic
		}
	}
	return s
}

func rulesOf(s iptables.FamilyStats) metrics.Family {
	f := metrics.Family{
		Restores: uint64(s.Restores), RestoreFailures: uint64(s.FailedRestores), PartialRestoreFailures: uint64(s.FailedPartials),
		Restoring: s.Restoring, Reading: s.Reading,
		Repairs: uint64(s.Repairs), Quarantined: s.Quarantined, FlowsRemoved: uint64(s.FlowsRemoved), Broken: s.Err != nil,
	}
	for _, t := range s.Tables {
		f.Tables = append(f.Tables, metrics.Table(t))
	}
	return f
}

func trafficOf(s relay.Stats) metrics.Traffic {
	return metrics.Traffic{
		Accepted: s.Accepted, Connected: s.Connected, Failed: s.Failed, NoBackend: s.NoBackend, Abandoned: s.Abandoned, Limited: s.Limited,
		Queued: s.Queued, QueueTimeouts: s.QueueTimeouts, Hedges: s.Hedges, EarlyCloses: s.EarlyCloses,
		Idle: s.Idle, Aged: s.Aged, Drained: s.Drained, ShareWaits: s.ShareWaits,
		Active: s.Active, Retried: s.Retried, Retries: s.Retries, BytesIn: s.BytesIn, BytesOut: s.BytesOut,
		Resets: s.Resets, HalfClosed: s.HalfClosed, AcceptErrors: s.AcceptErrors, FDWaits: s.FDWaits, Strays: s.Strays,
		DatagramsIn: s.DatagramsIn, DatagramsOut: s.DatagramsOut, Unsendable: s.Dropped, Overflows: s.Overflows,
		Expired: s.Expired, Evicted: s.Evicted,
	}
}

// sourceSynced reports whether all that there was at the start has been taken over.
func (n *node) sourceSynced() bool {
	select {
	case <-n.proxier.Synced():
		return true
	default:
		return false
	}
}

// lastEvent is when the Kubernetes API said something last; zero without one.
func (n *node) lastEvent() (last time.Time) {
	if s := n.source.Following(); s != nil {
		for _, r := range s.Resources {
			if r.Event.After(last) {
				last = r.Event
			}
		}
	}
	return last
}
