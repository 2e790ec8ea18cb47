package local

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

// Without a Service CIDR each VIP has a route.
func BenchmarkCommit(b *testing.B) {
	for _, n := range []int{1000, 30000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			lab.Run(b, func(b *testing.B, node *lab.Host) {
				var want intercept.State
				for i := range n {
					want.Bindings = append(want.Bindings, tcp(fmt.Sprintf("10.96.%d.%d", i/250, i%250+1), 80))
				}
				r, err := New(testConfig())
				require.NoError(b, err)
				b.Run("all", func(b *testing.B) {
					for b.Loop() {
						require.NoError(b, r.Commit(b.Context(), want))
						b.StopTimer()
						require.NoError(b, r.Cleanup(b.Context()))
						b.StartTimer()
					}
				})
				require.NoError(b, r.Commit(b.Context(), want))
				b.Run("one more", func(b *testing.B) {
					for b.Loop() {
						require.NoError(b, r.Commit(b.Context(), intercept.State{Bindings: append(want.Bindings, tcp("10.95.0.1", 80))}))
						require.NoError(b, r.Commit(b.Context(), want))
					}
				})
				b.Run("verify", func(b *testing.B) {
					for b.Loop() {
						_, err := r.Verify(b.Context())
						require.NoError(b, err)
					}
				})
			})
		})
	}
}
