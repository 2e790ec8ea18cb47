package main

import (
	"fmt"
	"slices"
	"time"
)

// scaleTables shows what was measured with one number of Services.
func scaleTables(series []*scaleSeries) string {
	start := newTable("system", "cold start s", "source s", "own s", "iptables-restore s", "iptables-save s")
	change := newTable("system", "Service added ms", "endpoints changed ms", "p99 ms", "restores", "under churn ms", "p99 ms", "restores")
	packets := newTable("system", "connect p50 us", "p99 us", "connection p50 us", "p99 us")
	uses := newTable("system", "idle CPU %", "idle MiB", "churn CPU %", "churn MiB", "peak MiB", "fds")
	for _, s := range series {
		start.add(s.System, s.cell(seconds, func(v *scaleSample) time.Duration { return v.Start.Total }),
			s.cell(seconds, func(v *scaleSample) time.Duration { return v.Start.Delivered }),
			s.cell(seconds, func(v *scaleSample) time.Duration { return v.Start.Own }),
			s.cell(seconds, func(v *scaleSample) time.Duration { return v.Start.Restore }),
			s.cell(seconds, func(v *scaleSample) time.Duration { return v.Start.Read }))
		change.add(s.System, s.cell(millis, func(v *scaleSample) time.Duration { return percentileOf(v.Added, 50) }),
			s.cell(millis, func(v *scaleSample) time.Duration { return percentileOf(v.Changed, 50) }),
			s.cell(millis, func(v *scaleSample) time.Duration { return percentileOf(v.Changed, 99) }),
			s.count(func(v *scaleSample) int { return v.Restores }),
			s.cell(millis, func(v *scaleSample) time.Duration { return percentileOf(v.ChurnChanged, 50) }),
			s.cell(millis, func(v *scaleSample) time.Duration { return percentileOf(v.ChurnChanged, 99) }),
			s.count(func(v *scaleSample) int { return v.ChurnRestores }))
		packets.add(s.System, s.cell(wholeMicros, func(v *scaleSample) time.Duration { return v.ConnectP50 }),
			s.cell(wholeMicros, func(v *scaleSample) time.Duration { return v.ConnectP99 }),
			s.cell(wholeMicros, func(v *scaleSample) time.Duration { return v.WholeP50 }),
			s.cell(wholeMicros, func(v *scaleSample) time.Duration { return v.WholeP99 }))
		uses.add(s.System, s.share(func(v *scaleSample) use { return v.Idle }), s.resident(func(v *scaleSample) int64 { return v.Idle.Resident }),
			s.share(func(v *scaleSample) use { return v.Churn }), s.resident(func(v *scaleSample) int64 { return v.Churn.Resident }),
			s.resident(func(v *scaleSample) int64 { return v.Peak }), s.count(func(v *scaleSample) int { return v.FDs }))
	}
	return fmt.Sprint(start, "\n", change, "\n", packets, "\n", uses)
}

// flatnessTable compares first packets of all numbers of Services with those of the first.
func flatnessTable(series []*scaleSeries) *table {
	t := newTable("system", "Services", "connect p50", "connection p50")
	for _, s := range series {
		i := slices.IndexFunc(series, func(o *scaleSeries) bool { return o.System == s.System })
		times := func(of func(*scaleSample) time.Duration) string {
			base := spreadOver(series[i].Samples, of).median
			if base == 0 {
				return ""
			}
			return ratio(float64(spreadOver(s.Samples, of).median)/float64(base)) + "x"
		}
		if series[i] != s {
			t.add(s.System, fmt.Sprint(s.Services), times(func(v *scaleSample) time.Duration { return v.ConnectP50 }),
				times(func(v *scaleSample) time.Duration { return v.WholeP50 }))
		}
	}
	return t
}

// spreadOver summarises a value of all samples.
func spreadOver[T int | int64 | float64 | time.Duration](samples []*scaleSample, of func(*scaleSample) T) spread[T] {
	var values []T
	for _, v := range samples {
		values = append(values, of(v))
	}
	return spreadOf(values)
}

// cell shows a duration; nothing if it was not measured.
func (s *scaleSeries) cell(one func(time.Duration) string, of func(*scaleSample) time.Duration) string {
	v := spreadOver(s.Samples, of)
	if v.max == 0 {
		return ""
	}
	return v.format(one)
}

// count shows the largest of some numbers.
func (s *scaleSeries) count(of func(*scaleSample) int) string {
	return fmt.Sprint(spreadOver(s.Samples, of).max)
}

func (s *scaleSeries) share(of func(*scaleSample) use) string {
	v := spreadOver(s.Samples, func(v *scaleSample) float64 { return of(v).CPU })
	if spreadOver(s.Samples, func(v *scaleSample) int64 { return of(v).Resident }).max == 0 {
		return ""
	}
	return v.format(func(v float64) string { return fmt.Sprintf("%.2f", 100*v) })
}

func (s *scaleSeries) resident(of func(*scaleSample) int64) string {
	v := spreadOver(s.Samples, of)
	if v.max == 0 {
		return ""
	}
	return v.format(func(v int64) string { return fmt.Sprintf("%.0f", float64(v)/(1<<20)) })
}

func percentileOf(values []time.Duration, p int) time.Duration {
	return percentile(slices.Sorted(slices.Values(values)), p)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()) }

func wholeMicros(d time.Duration) string { return fmt.Sprintf("%.0f", float64(d)/1e3) }
