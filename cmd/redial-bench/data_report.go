package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// dataReport is all that was measured.
type dataReport struct {
	Environment environment       `json:"environment"`
	Rounds      int               `json:"rounds"`
	Seconds     float64           `json:"seconds"` // of one measurement
	Series      []*dataSeries     `json:"series,omitempty"`
	Syscalls    []*syscallsSeries `json:"syscalls,omitempty"`
}

// dataSeries is one system under one load, a sample per round.
type dataSeries struct {
	Load    string        `json:"load"`
	System  string        `json:"system"`
	Cores   int           `json:"cores,omitempty"` // that it may use; 0: all
	Samples []*dataSample `json:"samples"`
}

// figure is something that samples have, if the load is of the kind.
type figure struct {
	name   string
	of     func(*dataSample) (value float64, ok bool)
	format func(float64) string
}

func (m *dataSample) ops() bool { return m.Done > 0 }

// mixed loads have no operation that the processor time is for.
func (m *dataSample) mixed() bool { return m.Done > 0 && m.Bytes > 0 }

func digits(n int) func(float64) string {
	return func(v float64) string { return fmt.Sprintf("%.*f", n, v) }
}

var (
	opsRate = figure{"per second", func(m *dataSample) (float64, bool) {
		return float64(m.Done) / m.Elapsed.Seconds(), m.ops()
	}, perSecond}
	bitRate = figure{"Gbit/s", func(m *dataSample) (float64, bool) {
		return float64(m.Bytes) * 8 / m.Elapsed.Seconds() / 1e9, m.Bytes > 0
	}, digits(2)}
	p50 = figure{"p50, µs", func(m *dataSample) (float64, bool) { return float64(m.P50), m.ops() }, micros}
	p99 = figure{"p99, µs", func(m *dataSample) (float64, bool) { return float64(m.P99), m.ops() }, micros}
	// The kernel's processor time is nobody's.
	cpuEach = figure{"CPU each, µs", func(m *dataSample) (float64, bool) {
		return float64(m.CPU) / float64(m.Done), m.ops() && !m.mixed() && m.CPU > 0
	}, micros}
	cpuGiB = figure{"CPU per GiB, ms", func(m *dataSample) (float64, bool) {
		return m.CPU.Seconds() * 1e3 / (float64(m.Bytes) / (1 << 30)), m.Bytes > 0 && !m.mixed() && m.CPU > 0
	}, digits(0)}
	cpuShare = figure{"CPU, % of one", func(m *dataSample) (float64, bool) {
		return 100 * m.CPU.Seconds() / m.Elapsed.Seconds(), m.mixed() && m.CPU > 0
	}, digits(1)}
	held    = figure{"connections", func(m *dataSample) (float64, bool) { return float64(m.Idle), m.Idle > 0 }, digits(0)}
	kibEach = figure{"resident KiB each", func(m *dataSample) (float64, bool) {
		return float64(m.During.Resident-m.Before.Resident) / 1024 / float64(m.Idle), m.Idle > 0 && m.During.FDs > 0
	}, digits(1)}
	fdsEach = figure{"fds each", func(m *dataSample) (float64, bool) {
		return float64(m.During.FDs-m.Before.FDs) / float64(m.Kept), m.Kept > 0 && m.During.FDs > 0
	}, digits(1)}
	resident = figure{"resident MiB", func(m *dataSample) (float64, bool) {
		return float64(m.During.Resident) / (1 << 20), m.During.Resident > 0
	}, digits(0)}

	dataFigures     = []figure{held, opsRate, bitRate, p50, p99, cpuEach, cpuGiB, cpuShare, kibEach, fdsEach, resident}
	comparedFigures = []figure{opsRate, bitRate, p50, p99, cpuEach, cpuGiB, cpuShare, kibEach}
	summedUp        = append([]figure{held}, comparedFigures...)
)

func (r *dataReport) add(load string, s *system, sample *dataSample) {
	for _, known := range r.Series {
		if known.Load == load && known.label() == s.name {
			known.Samples = append(known.Samples, sample)
			return
		}
	}
	name, _ := strings.CutSuffix(s.name, ofCores(s.cores))
	r.Series = append(r.Series, &dataSeries{Load: load, System: name, Cores: s.cores, Samples: []*dataSample{sample}})
}

func (s *dataSeries) label() string {
	if s.Cores > 0 {
		return s.System + ofCores(s.Cores)
	}
	return s.System
}

func (r *dataReport) under(load string) []*dataSeries {
	var under []*dataSeries
	for _, s := range r.Series {
		if s.Load == load {
			under = append(under, s)
		}
	}
	return under
}

// each is a figure of all rounds that have it.
func (s *dataSeries) each(f figure) []float64 {
	var values []float64
	for _, m := range s.Samples {
		if v, ok := f.of(m); ok {
			values = append(values, v)
		}
	}
	return values
}

// beside is the quotient of a figure and another series's, round by round.
func (s *dataSeries) beside(other *dataSeries, f figure) []float64 {
	var values []float64
	for i, m := range s.Samples[:min(len(s.Samples), len(other.Samples))] {
		v, ok := f.of(m)
		w, same := f.of(other.Samples[i])
		if ok && same && w > 0 {
			values = append(values, v/w)
		}
	}
	return values
}

// cell is empty if there is nothing.
func cell(values []float64, format func(float64) string) string {
	switch len(values) {
	case 0:
		return ""
	case 1:
		return format(values[0])
	}
	return spreadOf(values).format(format)
}

func (s *dataSeries) faults() (failed, wrong int) {
	for _, m := range s.Samples {
		failed, wrong = failed+m.Failed, wrong+m.Wrong
	}
	return failed, wrong
}

func (s *dataSeries) faultCell() string {
	failed, wrong := s.faults()
	if wrong > 0 {
		return fmt.Sprintf("%d, %d WRONG", failed, wrong)
	}
	return fmt.Sprint(failed)
}

func (r *dataReport) heading() string {
	return fmt.Sprintf("## TCP\n%s\nRequests and answers of 64 bytes; medians (and ranges) of %d rounds of %g s.\n", r.Environment, r.Rounds, r.Seconds)
}

// tables shows one load.
func (r *dataReport) tables(load string) string {
	series := r.under(load)
	var b strings.Builder
	fmt.Fprintf(&b, "\n**%s**\n\n%s", load, dataTable(series))
	if t := scaleTable(series); len(t.rows) > 1 {
		fmt.Fprintf(&b, "\nTwo cores beside one, round by round; clients and backends use the same processors:\n\n%s", t)
	} else if t := besideTable(series); len(t.rows) > 1 {
		fmt.Fprintf(&b, "\nredial beside the others, round by round:\n\n%s", t)
	}
	return b.String()
}

// had are those of the figures that any of the series has.
func had(series []*dataSeries, figures []figure) []figure {
	return slices.DeleteFunc(slices.Clone(figures), func(f figure) bool {
		return !slices.ContainsFunc(series, func(s *dataSeries) bool { return len(s.each(f)) > 0 })
	})
}

func dataTable(series []*dataSeries) *table {
	figures := had(series, dataFigures)
	header := []string{"system"}
	for _, f := range figures {
		header = append(header, f.name)
	}
	t := newTable(append(header, "failed")...)
	for _, s := range series {
		row := []string{s.label()}
		for _, f := range figures {
			row = append(row, cell(s.each(f), f.format))
		}
		t.add(append(row, s.faultCell())...)
	}
	return t
}

func (s *dataSeries) own() bool { return strings.HasPrefix(s.System, "redial") }

// besideTable compares measurements that were made within seconds of each other, which a noisy machine distorts least.
func besideTable(series []*dataSeries) *table {
	figures := had(series, comparedFigures)
	header := []string{"system", "beside"}
	for _, f := range figures {
		name, _, _ := strings.Cut(f.name, ",")
		header = append(header, name)
	}
	t := newTable(header...)
	for _, s := range series {
		for _, other := range series {
			if !s.own() || other.own() {
				continue
			}
			row := []string{s.label(), other.label()}
			any := false
			for _, f := range figures {
				values := s.beside(other, f)
				row, any = append(row, cell(values, ratio)), any || len(values) > 0
			}
			if any {
				t.add(row...)
			}
		}
	}
	return t
}

// scaleTable compares the systems with themselves on fewer processors.
func scaleTable(series []*dataSeries) *table {
	figures := had(series, []figure{opsRate, bitRate, p99, cpuEach, cpuGiB})
	busy := figure{"processors busy", func(m *dataSample) (float64, bool) { return m.CPU.Seconds() / m.Elapsed.Seconds(), m.CPU > 0 }, ratio}
	header := []string{"system"}
	for _, f := range figures {
		name, _, _ := strings.Cut(f.name, ",")
		header = append(header, name)
	}
	t := newTable(append(header, "busy, 1 core", "busy, 2 cores")...)
	for _, one := range series {
		for _, two := range series {
			if one.System != two.System || one.Cores != 1 || two.Cores != 2 {
				continue
			}
			row := []string{one.System}
			for _, f := range figures {
				row = append(row, cell(two.beside(one, f), ratio))
			}
			t.add(append(row, cell(one.each(busy), ratio), cell(two.each(busy), ratio))...)
		}
	}
	return t
}

// summary is one table of medians.
func (r *dataReport) summary() string {
	var systems, loads []string
	for _, s := range r.Series {
		if s.Cores > 0 {
			continue
		}
		if !slices.Contains(systems, s.System) {
			systems = append(systems, s.System)
		}
		if !slices.Contains(loads, s.Load) {
			loads = append(loads, s.Load)
		}
	}
	if len(loads) == 0 {
		return ""
	}
	t := newTable(append([]string{"load", "medians"}, systems...)...)
	for _, load := range loads {
		series, first := r.under(load), load
		for _, f := range had(series, summedUp) {
			row := []string{first, f.name}
			for _, system := range systems {
				i := slices.IndexFunc(series, func(s *dataSeries) bool { return s.System == system })
				if i < 0 || len(series[i].each(f)) == 0 {
					row = append(row, "")
					continue
				}
				row = append(row, f.format(spreadOf(series[i].each(f)).median))
			}
			t.add(row...)
			first = ""
		}
	}
	return fmt.Sprintf("\n**All loads**\n\n%s", t)
}

// verdict is an error if redial failed anybody, or if anybody got a wrong byte.
func (r *dataReport) verdict() error {
	var errs []error
	for _, s := range r.Series {
		if failed, wrong := s.faults(); s.own() && failed > 0 || wrong > 0 {
			errs = append(errs, fmt.Errorf("%s, %s: %d connections failed, %d brought wrong bytes", s.Load, s.label(), failed, wrong))
		}
	}
	return errors.Join(errs...)
}
