package balancer

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

func benchmarkSet(n int) []netip.AddrPort {
	list := make([]netip.AddrPort, n)
	for i := range list {
		var ip [4]byte
		binary.BigEndian.PutUint32(ip[:], 10<<24+uint32(i))
		list[i] = netip.AddrPortFrom(netip.AddrFrom4(ip), 80)
	}
	return list
}

func BenchmarkPick(b *testing.B) {
	for _, affinity := range []time.Duration{0, time.Hour} {
		for _, n := range []int{1, 10, 1000} {
			bal := New(nil)
			bal.Update(Config{Backends: weighted(benchmarkSet(n), 1), Affinity: affinity})
			name := fmt.Sprintf("backends=%d/affinity=%v", n, affinity > 0)
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					bal.Pick(anyone, nil)
				}
			})
			var clients atomic.Int64
			b.Run(name+"/parallel", func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					who := client(int(clients.Add(1)))
					for pb.Next() {
						bal.Pick(who, nil)
					}
				})
			})
		}
	}
}

// BenchmarkPickNewClient is the worst case for affinity: every pick makes a pin and, the table being full, evicts one.
func BenchmarkPickNewClient(b *testing.B) {
	bal := New(nil)
	bal.Update(Config{Backends: weighted(benchmarkSet(10), 1), Affinity: time.Hour})
	b.ReportAllocs()
	var n uint32
	for b.Loop() {
		n++
		var ip [4]byte
		binary.BigEndian.PutUint32(ip[:], n)
		bal.Pick(netip.AddrFrom4(ip), nil)
	}
}

func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{1, 10, 1000} {
		sets := [][]Backend{weighted(benchmarkSet(n), 1), weighted(benchmarkSet(n+1), 1)}
		b.Run(fmt.Sprintf("backends=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			bal := New(nil)
			for i := 0; b.Loop(); i++ {
				bal.Update(Config{Backends: sets[i%2]})
			}
		})
	}
}

// BenchmarkScheduler is a whole connection as the balancer sees it.
func BenchmarkScheduler(b *testing.B) {
	for _, s := range schedulers {
		for _, n := range []int{4, 100, 1000} {
			bal := New(nil)
			bal.Update(Config{Scheduler: s.name, Backends: weighted(benchmarkSet(n), 3, 2, 1)})
			connect := func(who netip.Addr) {
				be, _ := bal.PickFor(who, who, nil)
				bal.Report(who, be, time.Millisecond, nil)
				bal.Release(be)
			}
			name := fmt.Sprintf("%s/backends=%d", s.name, n)
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				c := 0
				for b.Loop() {
					c++
					connect(hostOf(c))
				}
			})
			b.Run(name+"/parallel", func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for c := 0; pb.Next(); c++ {
						connect(hostOf(c))
					}
				})
			})
		}
	}
}

// BenchmarkMemory makes a node's worth of balancers per iteration; bytes are per balancer.
func BenchmarkMemory(b *testing.B) {
	const balancers = 30000
	for _, s := range []Scheduler{RoundRobin, LeastConnection, SourceHash, Maglev} {
		b.Run(string(s), func(b *testing.B) {
			list := weighted(benchmarkSet(4), 1)
			var before, after runtime.MemStats
			for b.Loop() {
				runtime.GC()
				runtime.ReadMemStats(&before)
				all := make([]*Balancer, balancers)
				for i := range all {
					all[i] = New(nil)
					all[i].Update(Config{Scheduler: s, Backends: list})
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				runtime.KeepAlive(all)
			}
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/balancers, "B/balancer")
		})
	}
}
