package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// triggeredAt is a slice with one endpoint whose change the controller saw at second n of some minute.
func triggeredAt(name, ip string, n int) *discoveryv1.EndpointSlice {
	return changed(newSlice(name, ip), func(s *discoveryv1.EndpointSlice) {
		s.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: second(n).Format(time.RFC3339Nano)}
	})
}

func second(n int) time.Time { return time.Date(2026, 1, 2, 3, 4, n, 5000, time.UTC) }

func TestTriggered(t *testing.T) {
	tr := delivered()
	tr.SetSlice(triggeredAt("web-1", "10.1.0.1", 1))
	tr.SetSlice(triggeredAt("web-2", "10.1.0.2", 3))
	tr.SetSlice(triggeredAt("web-3", "10.1.0.3", 2))
	tr.SetService(newService())
	require.Equal(t, second(3), tr.Take()[web].Triggered, "the newest")

	tr.SetSlice(triggeredAt("web-1", "10.1.0.4", 2))
	require.Equal(t, second(2), tr.Take()[web].Triggered, "the newest of what has changed since")

	tr.SetSlice(triggeredAt("web-1", "10.1.0.5", 9))
	tr.SetSlice(triggeredAt("web-1", "10.1.0.6", 8))
	require.Equal(t, second(9), tr.Take()[web].Triggered, "both changes are in the value")

	tr.SetSlice(triggeredAt("web-2", "10.1.0.2", 20))
	require.False(t, signalled(tr), "another time alone is no change")
	require.Empty(t, tr.Take())

	tr.SetService(newService(func(s *v1.Service) { s.Spec.ClusterIP = "10.0.0.2" }))
	require.Zero(t, tr.Take()[web].Triggered, "no slice has changed")

	tr.DeleteSlice("default", "web-3")
	require.Zero(t, tr.Take()[web].Triggered, "a deletion says not when")

	tr.SetSlice(triggeredAt("web-2", "10.1.0.7", 30))
	tr.SetSlice(triggeredAt("web-2", "10.1.0.2", 31))
	require.Empty(t, tr.Take(), "changed and changed back")
	tr.DeleteSlice("default", "web-1")
	require.Zero(t, tr.Take()[web].Triggered, "which is no part of a later change")
}

func TestTriggeredIsUnknown(t *testing.T) {
	for _, value := range []string{"", "yesterday", "2026-01-02", "1767323045"} {
		s := newSlice("web-1", "10.1.0.1")
		s.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: value}
		got := merged(newService(), s)
		require.Zero(t, got.Triggered, value)
		require.Empty(t, got.Problems, "it serves measuring only")
	}
	s := newSlice("web-1", "10.1.0.1")
	s.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: "2026-01-02T04:04:01.000005+01:00"}
	require.Equal(t, second(1), merged(newService(), s).Triggered)
}
