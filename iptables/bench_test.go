package iptables

import (
	"fmt"
	"testing"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

// BenchmarkCommit is the time of one change among n Services, and of finding that nothing changed.
func BenchmarkCommit(b *testing.B) {
	for _, mode := range modes {
		for _, n := range []int{1000, 30000} {
			for _, what := range []string{"change", "unchanged", "verify", "first"} {
				b.Run(fmt.Sprintf("%s/%d/%s", mode, n, what), func(b *testing.B) {
					lab.Run(b, func(b *testing.B, _ *lab.Host) { benchmarkCommit(b, mode, n, what) })
				})
			}
		}
	}
}

func benchmarkCommit(b *testing.B, mode Mode, n int, what string) {
	r, err := New(testConfig(mode))
	if err != nil {
		b.Skip(err)
	}
	bindings := manyServices(n, false)
	if err := r.Commit(b.Context(), intercept.State{Bindings: bindings}); err != nil {
		b.Fatal(err)
	}
	i := 0
	for b.Loop() {
		switch i++; what {
		case "change":
			bindings[i%n].Listen = wildcard(false, uint16(1+i%60000))
		case "first":
			if r, err = New(testConfig(mode)); err != nil {
				b.Fatal(err)
			}
		case "verify":
			if ok, err := r.Verify(b.Context()); !ok || err != nil {
				b.Fatal(ok, err)
			}
			continue
		}
		if err := r.Commit(b.Context(), intercept.State{Bindings: bindings}); err != nil {
			b.Fatal(err)
		}
	}
}
