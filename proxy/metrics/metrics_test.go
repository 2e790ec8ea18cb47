package metrics

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/config"
)

// everything is a Snapshot in which each field has a value of its own.
func everything() Snapshot {
	return Snapshot{
		LastQueued: time.Unix(101, 5e8), LastSynced: time.Unix(102, 0), SyncFailures: 103,
		ServiceChanges: 104, EndpointChanges: 105, PendingServiceChanges: 106, PendingEndpointChanges: 107,
		SourceSynced: true, LastEvent: time.Unix(108, 0), Delivered: time.Unix(111, 0),
		Families: map[config.Family]Family{
			config.IPv4: {
				Tables:   []Table{{Name: "nat", Rules: 201, Written: 202}, {Name: "filter", Rules: 203, Written: 204}},
				Restores: 205, RestoreFailures: 206, PartialRestoreFailures: 207, Repairs: 208, Quarantined: 209, FlowsRemoved: 210,
				Restoring: 213 * time.Second, Reading: 214 * time.Second,
				NoLocalInternal: 211, NoLocalExternal: 212,
			},
			config.IPv6: {Broken: true},
		},
		Serving: 109, Refusing: 110, Shared: 111, Lag: 1500 * time.Millisecond,
		Limits: Limits{
			Descriptors: 701, MaxDescriptors: 702, Connections: 703, MaxConnections: 704,
			Sessions: 705, MaxSessions: 706, Listeners: 707, MaxListeners: 708,
		},
		Balancers: Balancers{Suspicions: 807, Ejections: 801, ProbesAnswered: 802, ProbesFailed: 803, Full: 804, RetriesRefused: 805, Evictions: 806},
		TCP:       traffic(300), UDP: traffic(400),
		Services: []Service{
			{Name: config.ServiceName{Namespace: "shop", Name: "web"}, Problems: []string{"InvalidPort", "InvalidPort", "WrongFamily"}, Ready: 501, Terminating: 502, Unused: 503, Ejected: 504, Waiting: 505, Traffic: new(traffic(600))},
			{Name: config.ServiceName{Namespace: "shop", Name: "mail"}, Ready: 1, Problems: []string{"WrongFamily"}},
			{Name: config.ServiceName{Namespace: "shop", Name: "headless"}, Skipped: true},
		},
	}
}

func traffic(n uint64) Traffic {
	return Traffic{
		Connected: n + 1, Failed: n + 2, NoBackend: n + 3, Abandoned: n + 4, Active: int64(n) + 5, Retried: n + 6, Retries: n + 7,
		BytesIn: n + 8, BytesOut: n + 9, Resets: n + 10, HalfClosed: n + 11, AcceptErrors: n + 12, FDWaits: n + 13, Strays: n + 30,
		DatagramsIn: n + 14, DatagramsOut: n + 15, Unsendable: n + 16, Overflows: n + 17, Expired: n + 18, Evicted: n + 19,
		Accepted: n + 20, Limited: n + 21, Queued: n + 22, QueueTimeouts: n + 23, Hedges: n + 24, EarlyCloses: n + 25,
		Idle: n + 26, Aged: n + 27, Drained: n + 28, ShareWaits: n + 29,
	}
}

// series returns the value of each series whose name begins with one of the prefixes; of histograms the count.
func series(t *testing.T, m *Metrics, prefixes ...string) map[string]float64 {
	t.Helper()
	values := map[string]float64{}
	for name, f := range gather(t, m) {
		if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		for _, m := range f.GetMetric() {
			key := name
			for _, l := range m.GetLabel() {
				key += fmt.Sprintf(" %s=%s", l.GetName(), l.GetValue())
			}
			values[key] = value(m)
		}
	}
	return values
}

func value(m *dto.Metric) float64 {
	if h := m.GetHistogram(); h != nil {
		return float64(h.GetSampleCount())
	}
	return m.GetGauge().GetValue() + m.GetCounter().GetValue()
}

func TestEveryNumberIsShownWhereItBelongs(t *testing.T) {
	t.Parallel()
	m := New(Config{Version: "v1", PerService: true, Snapshot: everything})
	got := series(t, m, "redial_", "kubeproxy_sync_proxy_rules_", "kubeproxy_conntrack")
	for name := range got {
		if strings.HasPrefix(name, "redial_build_info") || strings.HasPrefix(name, "kubeproxy_sync_proxy_rules_duration") {
			delete(got, name)
		}
	}
	assert.Equal(t, map[string]float64{
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds ip_family=IPv4":                           102,
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds ip_family=IPv6":                           102,
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds ip_family=IPv4":                    101.5,
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds ip_family=IPv6":                    101.5,
		"kubeproxy_sync_proxy_rules_service_changes_total":                                           104,
		"kubeproxy_sync_proxy_rules_endpoint_changes_total":                                          105,
		"kubeproxy_sync_proxy_rules_service_changes_pending":                                         106,
		"kubeproxy_sync_proxy_rules_endpoint_changes_pending":                                        107,
		"kubeproxy_sync_proxy_rules_iptables_total ip_family=IPv4 table=nat":                         201,
		"kubeproxy_sync_proxy_rules_iptables_last ip_family=IPv4 table=nat":                          202,
		"kubeproxy_sync_proxy_rules_iptables_total ip_family=IPv4 table=filter":                      203,
		"kubeproxy_sync_proxy_rules_iptables_last ip_family=IPv4 table=filter":                       204,
		"kubeproxy_sync_proxy_rules_iptables_restore_failures_total ip_family=IPv4":                  206,
		"kubeproxy_sync_proxy_rules_iptables_restore_failures_total ip_family=IPv6":                  0,
		"kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total ip_family=IPv4":          207,
		"kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total ip_family=IPv6":          0,
		"kubeproxy_conntrack_reconciler_deleted_entries_total ip_family=IPv4":                        210,
		"kubeproxy_conntrack_reconciler_deleted_entries_total ip_family=IPv6":                        0,
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv4 traffic_policy=internal": 211,
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv4 traffic_policy=external": 212,
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv6 traffic_policy=internal": 0,
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total ip_family=IPv6 traffic_policy=external": 0,

		"redial_sync_failures_total":                 103,
		"redial_source_synced":                       1,
		"redial_source_last_event_timestamp_seconds": 108,
		"redial_steering_up ip_family=IPv4":          1,
		"redial_steering_up ip_family=IPv6":          0,
		"redial_rule_restores_total ip_family=IPv4":  205,
		"redial_rule_restores_total ip_family=IPv6":  0,
		"redial_rule_repairs_total ip_family=IPv4":   208,
		"redial_rule_repairs_total ip_family=IPv6":   0,
		"redial_bindings_quarantined ip_family=IPv4": 209,
		"redial_bindings_quarantined ip_family=IPv6": 0,
		"redial_frontends state=serving":             109,
		"redial_frontends state=refusing":            110,
		"redial_shared_frontends":                    111,

		"redial_source_delivered_timestamp_seconds":                         111,
		"redial_rule_programs_seconds_total ip_family=IPv4 program=restore": 213,
		"redial_rule_programs_seconds_total ip_family=IPv4 program=save":    214,
		"redial_rule_programs_seconds_total ip_family=IPv6 program=restore": 0,
		"redial_rule_programs_seconds_total ip_family=IPv6 program=save":    0,

		"redial_connections_total result=connected":                      301,
		"redial_connections_total result=failed":                         302,
		"redial_connections_total result=no_backend":                     303,
		"redial_connections_total result=abandoned":                      304,
		"redial_connections_active":                                      305,
		"redial_retried_total protocol=TCP":                              306,
		"redial_dial_retries_total protocol=TCP":                         307,
		"redial_forwarded_bytes_total direction=to_backend protocol=TCP": 308,
		"redial_forwarded_bytes_total direction=to_client protocol=TCP":  309,
		"redial_connections_reset_total":                                 310,
		"redial_connections_ended_total reason=half_closed":              311,
		"redial_connections_ended_total reason=idle":                     326,
		"redial_connections_ended_total reason=aged":                     327,
		"redial_connections_ended_total reason=drained":                  328,
		"redial_accepted_total protocol=TCP":                             320,
		"redial_connections_total result=limited":                        321,
		"redial_connections_queued_total":                                322,
		"redial_queue_timeouts_total":                                    323,
		"redial_hedged_dials_total":                                      324,
		"redial_early_closes_total":                                      325,
		"redial_share_waits_total":                                       329,
		"redial_connections_waiting":                                     505,
		"redial_accepted_total protocol=UDP":                             420,
		"redial_udp_sessions_total result=limited":                       421,
		"redial_accept_errors_total":                                     312,
		"redial_descriptor_waits_total":                                  313,
		"redial_stray_connections_total":                                 330,
		"redial_udp_sessions_total result=connected":                     401,
		"redial_udp_sessions_total result=failed":                        402,
		"redial_udp_sessions_total result=no_backend":                    403,
		"redial_udp_sessions_total result=abandoned":                     404,
		"redial_udp_sessions_active":                                     405,
		"redial_retried_total protocol=UDP":                              406,
		"redial_dial_retries_total protocol=UDP":                         407,
		"redial_forwarded_bytes_total direction=to_backend protocol=UDP": 408,
		"redial_forwarded_bytes_total direction=to_client protocol=UDP":  409,
		"redial_udp_datagrams_total direction=to_backend":                414,
		"redial_udp_datagrams_total direction=to_client":                 415,
		"redial_udp_datagrams_dropped_total reason=unsendable":           416,
		"redial_udp_datagrams_dropped_total reason=overflow":             417,
		"redial_udp_sessions_ended_total reason=idle":                    418,
		"redial_udp_sessions_ended_total reason=evicted":                 419,
		"redial_udp_sessions_ended_total reason=drained":                 428,

		"redial_limited_resources_used resource=descriptors": 701,
		"redial_limited_resources_max resource=descriptors":  702,
		"redial_limited_resources_used resource=connections": 703,
		"redial_limited_resources_max resource=connections":  704,
		"redial_limited_resources_used resource=sessions":    705,
		"redial_limited_resources_max resource=sessions":     706,
		"redial_limited_resources_used resource=listeners":   707,
		"redial_limited_resources_max resource=listeners":    708,
		"redial_event_loop_lag_seconds":                      1.5,

		"redial_backend_suspicions_total":             807,
		"redial_backend_ejections_total":              801,
		"redial_backend_probes_total result=answered": 802,
		"redial_backend_probes_total result=failed":   803,
		"redial_backends_full_total":                  804,
		"redial_dial_retries_refused_total":           805,
		"redial_affinity_evictions_total":             806,
		"redial_backends_ejected":                     504,

		"redial_services state=proxied":      2,
		"redial_services state=skipped":      1,
		"redial_problems reason=InvalidPort": 2,
		"redial_problems reason=WrongFamily": 2,
		"redial_backends state=ready":        502,
		"redial_backends state=terminating":  502,
		"redial_backends state=unused":       503,

		"redial_service_connections_total namespace=shop result=connected service=web":          601,
		"redial_service_connections_total namespace=shop result=failed service=web":             602,
		"redial_service_connections_total namespace=shop result=no_backend service=web":         603,
		"redial_service_connections_total namespace=shop result=abandoned service=web":          604,
		"redial_service_connections_total namespace=shop result=limited service=web":            621,
		"redial_service_connections_waiting namespace=shop service=web":                         505,
		"redial_service_connections_active namespace=shop service=web":                          605,
		"redial_service_retried_total namespace=shop service=web":                               606,
		"redial_service_forwarded_bytes_total direction=to_backend namespace=shop service=web":  608,
		"redial_service_forwarded_bytes_total direction=to_client namespace=shop service=web":   609,
		"redial_service_backends namespace=shop service=web state=ready":                        501,
		"redial_service_backends namespace=shop service=web state=terminating":                  502,
		"redial_service_backends namespace=shop service=web state=unused":                       503,
		"redial_service_backends_ejected namespace=shop service=web":                            504,
		"redial_service_problems namespace=shop service=web":                                    3,
		"redial_service_connections_total namespace=shop result=connected service=mail":         0,
		"redial_service_connections_total namespace=shop result=failed service=mail":            0,
		"redial_service_connections_total namespace=shop result=no_backend service=mail":        0,
		"redial_service_connections_total namespace=shop result=abandoned service=mail":         0,
		"redial_service_connections_total namespace=shop result=limited service=mail":           0,
		"redial_service_connections_waiting namespace=shop service=mail":                        0,
		"redial_service_connections_active namespace=shop service=mail":                         0,
		"redial_service_retried_total namespace=shop service=mail":                              0,
		"redial_service_forwarded_bytes_total direction=to_backend namespace=shop service=mail": 0,
		"redial_service_forwarded_bytes_total direction=to_client namespace=shop service=mail":  0,
		"redial_service_backends namespace=shop service=mail state=ready":                       1,
		"redial_service_backends namespace=shop service=mail state=terminating":                 0,
		"redial_service_backends namespace=shop service=mail state=unused":                      0,
		"redial_service_problems namespace=shop service=mail":                                   1,
	}, got)
}

func TestSeriesOfWhatIsGoneAreGone(t *testing.T) {
	t.Parallel()
	s := everything()
	m := New(Config{PerService: true, Snapshot: func() Snapshot { return s }})
	assert.NotEmpty(t, series(t, m, "redial_service_"))
	s = Snapshot{Families: map[config.Family]Family{config.IPv6: {}}}
	assert.Empty(t, series(t, m, "redial_service_", "redial_problems", "redial_source_last", "kubeproxy_sync_proxy_rules_last", "kubeproxy_sync_proxy_rules_iptables_total"))
	assert.Equal(t, map[string]float64{"redial_steering_up ip_family=IPv6": 1}, series(t, m, "redial_steering_up"))
	assert.Equal(t, map[string]float64{"redial_services state=proxied": 0, "redial_services state=skipped": 0}, series(t, m, "redial_services"))
}

func TestNothingGrowsWithTheServicesUnlessAskedFor(t *testing.T) {
	t.Parallel()
	assert.Equal(t, map[string]float64{"redial_service_backends_ejected namespace=shop service=web": 504},
		series(t, New(Config{Snapshot: everything}), "redial_service_"), "what is in trouble only")
}

// Manifests may hold any bytes. One such name must not hide everything else.
func TestNamesThatAreNotUTF8(t *testing.T) {
	t.Parallel()
	m := New(Config{Version: "\xff", PerService: true, Snapshot: func() Snapshot {
		return Snapshot{Services: []Service{{Name: config.ServiceName{Namespace: "a\xff", Name: "\xfeb"}, Problems: []string{"\xff"}}}}
	}})
	assert.Contains(t, series(t, m, "redial_service_problems"), "redial_service_problems namespace=a\uFFFD service=\uFFFDb")
}

func TestObservations(t *testing.T) {
	t.Parallel()
	m := New(Config{Families: []config.Family{config.IPv6}, Snapshot: everything})
	m.Synced(time.Second, true, nil)
	m.Synced(time.Second, false, nil)
	m.Synced(time.Second, false, errors.New("failed, but took its time"))
	m.Programmed(2 * time.Second)
	m.Programmed(-time.Second)
	m.Probed("healthz", 200)
	m.Probed("healthz", 503)
	m.Probed("healthz", 503)
	m.Probed("livez", 200)
	m.Probed("else", 200)
	assert.Equal(t, map[string]float64{
		"kubeproxy_sync_proxy_rules_duration_seconds ip_family=IPv6":         3,
		"kubeproxy_sync_full_proxy_rules_duration_seconds ip_family=IPv6":    1,
		"kubeproxy_sync_partial_proxy_rules_duration_seconds ip_family=IPv6": 2,
		"kubeproxy_network_programming_duration_seconds ip_family=IPv6":      2,
		"kubeproxy_proxy_healthz_total code=200":                             1,
		"kubeproxy_proxy_healthz_total code=503":                             2,
		"kubeproxy_proxy_livez_total code=200":                               1,
		"kubeproxy_proxy_livez_total code=503":                               0,
	}, series(t, m, "kubeproxy_sync_proxy_rules_duration", "kubeproxy_sync_full", "kubeproxy_sync_partial", "kubeproxy_network", "kubeproxy_proxy_"))
	latency := gather(t, m)["kubeproxy_network_programming_duration_seconds"].GetMetric()[0].GetHistogram()
	assert.Equal(t, 2.0, latency.GetSampleSum(), "clocks that differ do not make sums shrink")
}

func TestAllAtATime(t *testing.T) {
	t.Parallel()
	m := New(Config{PerService: true, Snapshot: everything})
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			for range 20 {
				m.Synced(time.Millisecond, true, nil)
				m.Programmed(time.Millisecond)
				m.Probed("livez", 200)
				_, err := m.registry.Gather()
				assert.NoError(t, err)
			}
		})
	}
	running.Wait()
	assert.Equal(t, 160.0, series(t, m, "kubeproxy_sync_full")["kubeproxy_sync_full_proxy_rules_duration_seconds ip_family=IPv4"])
}

func BenchmarkGather(b *testing.B) {
	for _, n := range []int{1_000, 30_000} {
		s := everything()
		s.Services = nil
		for i := range n {
			s.Services = append(s.Services, Service{Name: config.ServiceName{Namespace: "bench", Name: fmt.Sprint(i)}, Ready: 3, Traffic: new(traffic(1))})
		}
		for _, perService := range []bool{false, true} {
			m := New(Config{PerService: perService, Snapshot: func() Snapshot { return s }})
			b.Run(fmt.Sprintf("services=%d/perService=%v", n, perService), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					_, err := m.registry.Gather()
					require.NoError(b, err)
				}
			})
		}
	}
}
