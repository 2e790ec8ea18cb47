package metrics

var (
	used = gauge("redial_limited_resources_used",
		"How much is in use of what all Services share: descriptors of listeners and TCP connections, and the numbers of both and of UDP sessions.", "resource")
	most = gauge("redial_limited_resources_max",
		"How much there may be of what all Services share. At the limit connections wait, sessions end for others, Service ports are not served.", "resource")
	loopLag = gauge("redial_event_loop_lag_seconds",
		"How long the slowest event loop took to get round to a request at this scrape.")
)

func (e emit) limits(s *Snapshot) {
	l := &s.Limits
	for _, r := range []struct {
		name      string
		used, max int64
	}{
		{"descriptors", l.Descriptors, l.MaxDescriptors},
		{"connections", l.Connections, l.MaxConnections},
		{"sessions", l.Sessions, l.MaxSessions},
		{"listeners", int64(l.Listeners), int64(l.MaxListeners)},
	} {
		set(e, used, r.used, r.name)
		set(e, most, r.max, r.name)
	}
	set(e, loopLag, s.Lag.Seconds())
}

var (
	suspicions = counter("redial_backend_suspicions_total",
		"Times that a backend was avoided while a dial to it took longer than usual.")
	ejections = counter("redial_backend_ejections_total",
		"Times that a backend was left out for its failures, or for longer because it failed a test.")
	probes = counter("redial_backend_probes_total",
		"Tests whether ejected backends answer again, by their outcome.", "result")
	full = counter("redial_backends_full_total",
		"Choices of a backend in vain because all had as many connections as they may.")
	retriesRefused = counter("redial_dial_retries_refused_total",
		"Dials after a failed one that were not made because all backends were ejected and the retry budget was spent.")
	affinityEvictions = counter("redial_affinity_evictions_total",
		"Clients whose session affinity was forgotten because there were too many.")
)

func (e emit) balancers(b *Balancers) {
	set(e, suspicions, b.Suspicions)
	set(e, ejections, b.Ejections)
	set(e, probes, b.ProbesAnswered, "answered")
	set(e, probes, b.ProbesFailed, "failed")
	set(e, full, b.Full)
	set(e, retriesRefused, b.RetriesRefused)
	set(e, affinityEvictions, b.Evictions)
}
