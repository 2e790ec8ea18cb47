package metrics

import "redial/config"

// What directions are called in labels.
const (
	toBackend = "to_backend"
	toClient  = "to_client"
)

var (
	syncFailures = counter("redial_sync_failures_total",
		"Syncs after which the rules may not have been as wanted.")
	sourceSynced = gauge("redial_source_synced",
		"Whether the source of Services has delivered all there was at the start (1) or is still being waited for (0).")
	sourceDelivered = gauge("redial_source_delivered_timestamp_seconds",
		"When the source of Services had delivered all there was at the start.")
	sourceLastEvent = gauge("redial_source_last_event_timestamp_seconds",
		"When the source of Services last said something.")
	steeringUp = gauge("redial_steering_up",
		"Whether a family's traffic is steered to the proxy (1) or its rules cannot be written at all (0).", "ip_family")
	ruleRestores = counter("redial_rule_restores_total",
		"Executions of iptables-restore.", "ip_family")
	ruleSeconds = counter("redial_rule_programs_seconds_total",
		"How long iptables-restore and iptables-save have run.", "program", "ip_family")
	ruleRepairs = counter("redial_rule_repairs_total",
		"Times that rules were found changed by others, and written again.", "ip_family")
	quarantined = gauge("redial_bindings_quarantined",
		"Addresses that are not steered because the kernel refuses their rules.", "ip_family")
	frontends = gauge("redial_frontends",
		"Listeners for Service ports that serve clients, and that refuse them for want of a usable backend.", "state")
	shared = gauge("redial_shared_frontends",
		"Those of them that share a proxy port, for want of ports or file descriptors.")
)

func (e emit) syncs(s *Snapshot) {
	set(e, syncFailures, s.SyncFailures)
	setBool(e, sourceSynced, s.SourceSynced)
	setTime(e, sourceDelivered, s.Delivered)
	setTime(e, sourceLastEvent, s.LastEvent)
	set(e, frontends, s.Serving, "serving")
	set(e, frontends, s.Refusing, "refusing")
	set(e, shared, s.Shared)
	for _, name := range config.Families {
		if f, served := s.Families[name]; served {
			setBool(e, steeringUp, !f.Broken, string(name))
			set(e, ruleRestores, f.Restores, string(name))
			set(e, ruleSeconds, f.Restoring.Seconds(), "restore", string(name))
			set(e, ruleSeconds, f.Reading.Seconds(), "save", string(name))
			set(e, ruleRepairs, f.Repairs, string(name))
			set(e, quarantined, f.Quarantined, string(name))
		}
	}
}

var (
	connectionsActive = gauge("redial_connections_active",
		"TCP connections between accept and close.")
	connectionsWaiting = gauge("redial_connections_waiting",
		"TCP connections that wait because of a Service's own limits.")
	accepted = counter("redial_accepted_total",
		"TCP connections accepted and UDP sessions begun; those without a result yet are being dialled, or wait.", "protocol")
	connections = counter("redial_connections_total",
		"TCP connections by whether they reached a backend, and if not, why.", "result")
	connectionsReset = counter("redial_connections_reset_total",
		"TCP connections that ended by a reset or timeout of either peer.")
	connectionsEnded = counter("redial_connections_ended_total",
		"TCP connections ended by the proxy: half closed for long, idle, old, or their backend had left.", "reason")
	queued = counter("redial_connections_queued_total",
		"TCP connections that waited because of a Service's own limits.")
	queueTimeouts = counter("redial_queue_timeouts_total",
		"TCP connections refused because they had waited for too long; they are among those with the result limited.")
	hedges = counter("redial_hedged_dials_total",
		"Dials made beside one that was silent.")
	earlyCloses = counter("redial_early_closes_total",
		"Times that a backend closed or reset a TCP connection before a byte had moved, which counts as a failed dial.")
	acceptErrors = counter("redial_accept_errors_total",
		"Failures to accept a TCP connection, for want of file descriptors or memory.")
	descriptorWaits = counter("redial_descriptor_waits_total",
		"TCP connections that waited for file descriptors.")
	shareWaits = counter("redial_share_waits_total",
		"Times that connections began to wait because their Service had its share of all that there may be.")
	strays = counter("redial_stray_connections_total",
		"TCP connections to shared proxy ports that were reset, since nobody serves their destination.")
	retried = counter("redial_retried_total",
		"TCP connections and UDP sessions that were saved: the first backend did not answer, another did.", "protocol")
	dialRetries = counter("redial_dial_retries_total",
		"Dials made after a failed one.", "protocol")
	forwardedBytes = counter("redial_forwarded_bytes_total",
		"Bytes passed on.", "protocol", "direction")
	sessionsActive = gauge("redial_udp_sessions_active",
		"UDP sessions.")
	sessions = counter("redial_udp_sessions_total",
		"UDP sessions begun, by whether they got a backend, and if not, why.", "result")
	sessionsEnded = counter("redial_udp_sessions_ended_total",
		"UDP sessions ended for being idle, to make room for others, or because their backend had left.", "reason")
	datagrams = counter("redial_udp_datagrams_total",
		"Datagrams received from clients and sent to them.", "direction")
	datagramsDropped = counter("redial_udp_datagrams_dropped_total",
		"Datagrams lost: unsendable, or because the receive buffer was full.", "reason")
)

func (e emit) traffic(s *Snapshot) {
	tcp, udp := &s.TCP, &s.UDP
	set(e, connectionsActive, tcp.Active)
	e.results(connections, tcp)
	set(e, connectionsReset, tcp.Resets)
	set(e, connectionsEnded, tcp.HalfClosed, "half_closed")
	set(e, connectionsEnded, tcp.Idle, "idle")
	set(e, connectionsEnded, tcp.Aged, "aged")
	set(e, connectionsEnded, tcp.Drained, "drained")
	set(e, queued, tcp.Queued)
	set(e, queueTimeouts, tcp.QueueTimeouts)
	set(e, hedges, tcp.Hedges)
	set(e, earlyCloses, tcp.EarlyCloses)
	set(e, acceptErrors, tcp.AcceptErrors)
	set(e, descriptorWaits, tcp.FDWaits)
	set(e, shareWaits, tcp.ShareWaits)
	set(e, strays, tcp.Strays)
	for _, of := range []struct {
		protocol config.Protocol
		*Traffic
	}{{config.TCP, tcp}, {config.UDP, udp}} {
		set(e, accepted, of.Accepted, string(of.protocol))
		set(e, retried, of.Retried, string(of.protocol))
		set(e, dialRetries, of.Retries, string(of.protocol))
		set(e, forwardedBytes, of.BytesIn, string(of.protocol), toBackend)
		set(e, forwardedBytes, of.BytesOut, string(of.protocol), toClient)
	}
	set(e, sessionsActive, udp.Active)
	e.results(sessions, udp)
	set(e, sessionsEnded, udp.Expired, "idle")
	set(e, sessionsEnded, udp.Evicted, "evicted")
	set(e, sessionsEnded, udp.Drained, "drained")
	set(e, datagrams, udp.DatagramsIn, toBackend)
	set(e, datagrams, udp.DatagramsOut, toClient)
	set(e, datagramsDropped, udp.Unsendable, "unsendable")
	set(e, datagramsDropped, udp.Overflows, "overflow")
}

// results emits a family whose last label is how connections began.
func (e emit) results(f *family, t *Traffic, labels ...string) {
	labels = labels[:len(labels):len(labels)]
	set(e, f, t.Connected, append(labels, "connected")...)
	set(e, f, t.Failed, append(labels, "failed")...)
	set(e, f, t.NoBackend, append(labels, "no_backend")...)
	set(e, f, t.Abandoned, append(labels, "abandoned")...)
	set(e, f, t.Limited, append(labels, "limited")...)
}
