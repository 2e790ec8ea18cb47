package config

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// BenchmarkEvent is one changed slice among so many Services, up to the change being taken: it must not depend on them.
func BenchmarkEvent(b *testing.B) {
	for _, n := range []int{1, 1000, 30_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			tr := delivered()
			for i := range n {
				name := fmt.Sprintf("svc-%d", i)
				tr.SetService(newService(func(s *v1.Service) { s.Name = name }))
			}
			slices := []*discoveryv1.EndpointSlice{newSlice("x", "10.1.0.1"), newSlice("x", "10.1.0.2")}
			for _, s := range slices {
				s.Labels[discoveryv1.LabelServiceName] = "svc-0"
			}
			tr.Take()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				tr.SetSlice(slices[i%2])
				if len(tr.Take()) != 1 {
					b.Fatal("no change")
				}
			}
		})
	}
}
