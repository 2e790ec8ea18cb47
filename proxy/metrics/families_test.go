package metrics

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// want says of each family what dashboards depend on. Those of kube-proxy's are as in Kubernetes 1.37,
// pkg/proxy/metrics/metrics.go.
var want = map[string]struct {
	kind   dto.MetricType
	labels string
}{
	"kubeproxy_sync_proxy_rules_duration_seconds":                        {dto.MetricType_HISTOGRAM, "ip_family"},
	"kubeproxy_sync_full_proxy_rules_duration_seconds":                   {dto.MetricType_HISTOGRAM, "ip_family"},
	"kubeproxy_sync_partial_proxy_rules_duration_seconds":                {dto.MetricType_HISTOGRAM, "ip_family"},
	"kubeproxy_network_programming_duration_seconds":                     {dto.MetricType_HISTOGRAM, "ip_family"},
	"kubeproxy_sync_proxy_rules_last_timestamp_seconds":                  {dto.MetricType_GAUGE, "ip_family"},
	"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds":           {dto.MetricType_GAUGE, "ip_family"},
	"kubeproxy_sync_proxy_rules_endpoint_changes_pending":                {dto.MetricType_GAUGE, ""},
	"kubeproxy_sync_proxy_rules_endpoint_changes_total":                  {dto.MetricType_COUNTER, ""},
	"kubeproxy_sync_proxy_rules_service_changes_pending":                 {dto.MetricType_GAUGE, ""},
	"kubeproxy_sync_proxy_rules_service_changes_total":                   {dto.MetricType_COUNTER, ""},
	"kubeproxy_sync_proxy_rules_iptables_total":                          {dto.MetricType_GAUGE, "ip_family table"},
	"kubeproxy_sync_proxy_rules_iptables_last":                           {dto.MetricType_GAUGE, "ip_family table"},
	"kubeproxy_sync_proxy_rules_iptables_restore_failures_total":         {dto.MetricType_COUNTER, "ip_family"},
	"kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total": {dto.MetricType_COUNTER, "ip_family"},
	"kubeproxy_sync_proxy_rules_no_local_endpoints_total":                {dto.MetricType_GAUGE, "ip_family traffic_policy"},
	"kubeproxy_conntrack_reconciler_deleted_entries_total":               {dto.MetricType_COUNTER, "ip_family"},
	"kubeproxy_proxy_healthz_total":                                      {dto.MetricType_COUNTER, "code"},
	"kubeproxy_proxy_livez_total":                                        {dto.MetricType_COUNTER, "code"},

	"redial_build_info":                          {dto.MetricType_GAUGE, "goversion version"},
	"redial_sync_failures_total":                 {dto.MetricType_COUNTER, ""},
	"redial_source_synced":                       {dto.MetricType_GAUGE, ""},
	"redial_source_delivered_timestamp_seconds":  {dto.MetricType_GAUGE, ""},
	"redial_source_last_event_timestamp_seconds": {dto.MetricType_GAUGE, ""},
	"redial_steering_up":                         {dto.MetricType_GAUGE, "ip_family"},
	"redial_rule_restores_total":                 {dto.MetricType_COUNTER, "ip_family"},
	"redial_rule_programs_seconds_total":         {dto.MetricType_COUNTER, "ip_family program"},
	"redial_rule_repairs_total":                  {dto.MetricType_COUNTER, "ip_family"},
	"redial_bindings_quarantined":                {dto.MetricType_GAUGE, "ip_family"},
	"redial_frontends":                           {dto.MetricType_GAUGE, "state"},
	"redial_shared_frontends":                    {dto.MetricType_GAUGE, ""},
	"redial_connections_active":                  {dto.MetricType_GAUGE, ""},
	"redial_connections_total":                   {dto.MetricType_COUNTER, "result"},
	"redial_connections_reset_total":             {dto.MetricType_COUNTER, ""},
	"redial_connections_ended_total":             {dto.MetricType_COUNTER, "reason"},
	"redial_connections_waiting":                 {dto.MetricType_GAUGE, ""},
	"redial_connections_queued_total":            {dto.MetricType_COUNTER, ""},
	"redial_queue_timeouts_total":                {dto.MetricType_COUNTER, ""},
	"redial_hedged_dials_total":                  {dto.MetricType_COUNTER, ""},
	"redial_early_closes_total":                  {dto.MetricType_COUNTER, ""},
	"redial_share_waits_total":                   {dto.MetricType_COUNTER, ""},
	"redial_accepted_total":                      {dto.MetricType_COUNTER, "protocol"},
	"redial_limited_resources_used":              {dto.MetricType_GAUGE, "resource"},
	"redial_limited_resources_max":               {dto.MetricType_GAUGE, "resource"},
	"redial_event_loop_lag_seconds":              {dto.MetricType_GAUGE, ""},
	"redial_backend_suspicions_total":            {dto.MetricType_COUNTER, ""},
	"redial_backend_ejections_total":             {dto.MetricType_COUNTER, ""},
	"redial_backend_probes_total":                {dto.MetricType_COUNTER, "result"},
	"redial_backends_full_total":                 {dto.MetricType_COUNTER, ""},
	"redial_dial_retries_refused_total":          {dto.MetricType_COUNTER, ""},
	"redial_affinity_evictions_total":            {dto.MetricType_COUNTER, ""},
	"redial_backends_ejected":                    {dto.MetricType_GAUGE, ""},
	"redial_service_backends_ejected":            {dto.MetricType_GAUGE, "namespace service"},
	"redial_service_connections_waiting":         {dto.MetricType_GAUGE, "namespace service"},
	"redial_accept_errors_total":                 {dto.MetricType_COUNTER, ""},
	"redial_descriptor_waits_total":              {dto.MetricType_COUNTER, ""},
	"redial_stray_connections_total":             {dto.MetricType_COUNTER, ""},
	"redial_retried_total":                       {dto.MetricType_COUNTER, "protocol"},
	"redial_dial_retries_total":                  {dto.MetricType_COUNTER, "protocol"},
	"redial_forwarded_bytes_total":               {dto.MetricType_COUNTER, "direction protocol"},
	"redial_udp_sessions_active":                 {dto.MetricType_GAUGE, ""},
	"redial_udp_sessions_total":                  {dto.MetricType_COUNTER, "result"},
	"redial_udp_sessions_ended_total":            {dto.MetricType_COUNTER, "reason"},
	"redial_udp_datagrams_total":                 {dto.MetricType_COUNTER, "direction"},
	"redial_udp_datagrams_dropped_total":         {dto.MetricType_COUNTER, "reason"},
	"redial_services":                            {dto.MetricType_GAUGE, "state"},
	"redial_problems":                            {dto.MetricType_GAUGE, "reason"},
	"redial_backends":                            {dto.MetricType_GAUGE, "state"},
	"redial_service_connections_active":          {dto.MetricType_GAUGE, "namespace service"},
	"redial_service_connections_total":           {dto.MetricType_COUNTER, "namespace result service"},
	"redial_service_retried_total":               {dto.MetricType_COUNTER, "namespace service"},
	"redial_service_forwarded_bytes_total":       {dto.MetricType_COUNTER, "direction namespace service"},
	"redial_service_backends":                    {dto.MetricType_GAUGE, "namespace service state"},
	"redial_service_problems":                    {dto.MetricType_GAUGE, "namespace service"},
	"process_open_fds":                           {dto.MetricType_GAUGE, ""},
	"process_max_fds":                            {dto.MetricType_GAUGE, ""},
	"process_resident_memory_bytes":              {dto.MetricType_GAUGE, ""},
	"go_goroutines":                              {dto.MetricType_GAUGE, ""},
}

func gather(t *testing.T, m *Metrics) map[string]*dto.MetricFamily {
	t.Helper()
	all, err := m.registry.Gather()
	require.NoError(t, err)
	byName := map[string]*dto.MetricFamily{}
	for _, f := range all {
		byName[f.GetName()] = f
	}
	return byName
}

func TestFamilies(t *testing.T) {
	t.Parallel()
	got := gather(t, New(Config{Version: "v1", PerService: true, Snapshot: everything}))
	for name, w := range want {
		f := got[name]
		if !assert.NotNil(t, f, name) {
			continue
		}
		assert.Equal(t, w.kind, f.GetType(), name)
		assert.NotEmpty(t, f.GetHelp(), name)
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName())
			}
			slices.Sort(labels)
			assert.Equal(t, w.labels, strings.Join(labels, " "), name)
		}
	}
	for name := range got {
		if strings.HasPrefix(name, "redial_") || strings.HasPrefix(name, "kubeproxy_") {
			assert.Contains(t, want, name, "a family that is not in the list")
		}
	}
}

func TestLint(t *testing.T) {
	t.Parallel()
	m := New(Config{PerService: true, Snapshot: everything})
	var ours []string
	for name := range gather(t, m) {
		if strings.HasPrefix(name, "redial_") {
			ours = append(ours, name)
		}
	}
	require.NotEmpty(t, ours)
	flaws, err := testutil.GatherAndLint(m.registry, ours...)
	require.NoError(t, err)
	assert.Empty(t, flaws)
}

// A pedantic registry also checks that what is collected has been described.
func TestPedantic(t *testing.T) {
	t.Parallel()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(&collector{snapshot: everything, perService: true})
	_, err := r.Gather()
	assert.NoError(t, err)
}

func TestBucketsAreThoseOfKubeProxy(t *testing.T) {
	t.Parallel()
	got := gather(t, New(Config{Snapshot: everything}))
	bounds := func(name string) (of []float64) {
		for _, b := range got[name].GetMetric()[0].GetHistogram().GetBucket() {
			of = append(of, b.GetUpperBound())
		}
		return of
	}
	for _, name := range []string{"sync_proxy_rules", "sync_full_proxy_rules", "sync_partial_proxy_rules"} {
		b := bounds("kubeproxy_" + name + "_duration_seconds")
		require.Len(t, b, 15, name)
		assert.Equal(t, 0.001, b[0])
		assert.Equal(t, 16.384, b[14])
	}
	b := bounds("kubeproxy_network_programming_duration_seconds")
	assert.Len(t, b, 2+59+12+7)
	assert.Equal(t, []float64{0.25, 0.5, 1, 2}, b[:4])
	assert.Equal(t, []float64{58, 59, 60, 65}, b[59:63])
	assert.Equal(t, []float64{115, 120, 150}, b[72:75])
	assert.Equal(t, 300.0, b[len(b)-1])
}
