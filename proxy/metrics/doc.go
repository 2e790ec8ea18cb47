// Package metrics shows Prometheus what a proxy does: under kube-proxy's names, where kube-proxy has one, so that its
// dashboards and alerts go on working, and under redial_* for what only a proxy that dials can tell.
//
//	m := metrics.New(metrics.Config{Version: version, Snapshot: snapshot})
//	h := m.Handler(metrics.HandlerConfig{Mode: "userspace", Log: log})
//	go server.New(server.Config{Name: "metrics", Addr: addr, Handler: h, Log: log}).Run(ctx)
//	...
//	m.Synced(took, full, err)
//
// What has a distribution is observed as it happens; all else is read from a [Snapshot] at each scrape. So there is nothing
// to keep in step: the series of a Service that has gone are not there any more. The number of series does not depend on
// the number of Services, unless Config.PerService asks for it. The package knows no other of ours but
// config: who fills the Snapshot knows where the numbers come from.
//
// Families of kube-proxy's have the names, labels, kinds and buckets of Kubernetes 1.37
// (https://kubernetes.io/docs/reference/instrumentation/metrics/). Its names break some rules of
// Prometheus's linter, which ours keep.
//
// All may be called from any goroutine.
package metrics
