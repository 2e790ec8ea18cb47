package metrics

import "redial/config"

// The families of kube-proxy's that are read at each scrape. Three gauges are called _total there, and so are here.
var (
	lastSynced = gauge("kubeproxy_sync_proxy_rules_last_timestamp_seconds",
		"When the rules were last synced with success.", "ip_family")
	lastQueued = gauge("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
		"When a sync of the rules was last asked for.", "ip_family")
	endpointChangesPending = gauge("kubeproxy_sync_proxy_rules_endpoint_changes_pending",
		"Changes of endpoints that are not in force yet.")
	endpointChanges = counter("kubeproxy_sync_proxy_rules_endpoint_changes_total",
		"Changes of endpoints.")
	serviceChangesPending = gauge("kubeproxy_sync_proxy_rules_service_changes_pending",
		"Changes of Services that are not in force yet.")
	serviceChanges = counter("kubeproxy_sync_proxy_rules_service_changes_total",
		"Changes of Services.")
	iptablesTotal = gauge("kubeproxy_sync_proxy_rules_iptables_total",
		"Rules of the proxy in force.", "table", "ip_family")
	iptablesLast = gauge("kubeproxy_sync_proxy_rules_iptables_last",
		"Rules that the last sync wrote.", "table", "ip_family")
	restoreFailures = counter("kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
		"Executions of iptables-restore that failed.", "ip_family")
	partialRestoreFailures = counter("kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
		"Executions of iptables-restore that failed and were to write changed rules only.", "ip_family")
	noLocalEndpoints = gauge("kubeproxy_sync_proxy_rules_no_local_endpoints_total",
		"Service ports with a traffic policy Local and endpoints on other nodes only.", "traffic_policy", "ip_family")
	flowsRemoved = counter("kubeproxy_conntrack_reconciler_deleted_entries_total",
		"Connection tracking entries deleted because they contradicted the rules.", "ip_family")
)

func (e emit) kubeProxy(s *Snapshot) {
	set(e, endpointChangesPending, s.PendingEndpointChanges)
	set(e, endpointChanges, s.EndpointChanges)
	set(e, serviceChangesPending, s.PendingServiceChanges)
	set(e, serviceChanges, s.ServiceChanges)
	for _, name := range config.Families {
		f, served := s.Families[name]
		if !served {
			continue
		}
		label := string(name)
		// One sync is of both families.
		setTime(e, lastSynced, s.LastSynced, label)
		setTime(e, lastQueued, s.LastQueued, label)
		for _, t := range f.Tables {
			set(e, iptablesTotal, t.Rules, t.Name, label)
			set(e, iptablesLast, t.Written, t.Name, label)
		}
		set(e, restoreFailures, f.RestoreFailures, label)
		set(e, partialRestoreFailures, f.PartialRestoreFailures, label)
		set(e, noLocalEndpoints, f.NoLocalInternal, "internal", label)
		set(e, noLocalEndpoints, f.NoLocalExternal, "external", label)
		set(e, flowsRemoved, f.FlowsRemoved, label)
	}
}
