package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// failoverReport is all that was measured.
type failoverReport struct {
	Environment environment       `json:"environment"`
	Rounds      int               `json:"rounds"`
	Seconds     float64           `json:"seconds"`  // of one measurement
	Rate        int               `json:"rate"`     // clients per second over three backends
	TenRate     int               `json:"tenRate"`  // and over ten
	Wave        int               `json:"wave"`     // clients at once
	Patience    time.Duration     `json:"patience"` // nanoseconds
	Series      []*failoverSeries `json:"series"`
}

// failoverSeries is one system under one fault, a sample per round.
type failoverSeries struct {
	Scene    string            `json:"scene"`
	Fault    string            `json:"fault"`
	Wave     int               `json:"wave,omitempty"` // 1: the first; 2: those after it; 0: no wave
	System   string            `json:"system"`
	Lossless bool              `json:"lossless"` // each client could have been saved
	Samples  []*failoverSample `json:"samples"`
}

func (r *failoverReport) add(sc scene, f fault, system string, wave int, sample *failoverSample) {
	if !sc.wave {
		wave = 0
	}
	s := r.find(sc.name, f.name, system, wave)
	if s == nil {
		s = &failoverSeries{Scene: sc.name, Fault: f.name, Wave: wave, System: system, Lossless: f.lossless}
		r.Series = append(r.Series, s)
	}
	s.Samples = append(s.Samples, sample)
}

// find returns a series, or nil if there is none.
func (r *failoverReport) find(scene, fault, system string, wave int) *failoverSeries {
	for _, s := range r.Series {
		if s.Scene == scene && s.Fault == fault && s.System == system && s.Wave == wave {
			return s
		}
	}
	return nil
}

// title names a series without its system.
func (s *failoverSeries) title() string {
	title := s.Scene + ": " + s.Fault
	switch s.Wave {
	case 1:
		title += ", first wave"
	case 2:
		title += fmt.Sprintf(", %d more waves", laterWaves)
	}
	return title
}

// heading is what stands before the tables.
func (r *failoverReport) heading() string {
	return fmt.Sprintf("## Failing backends\n%s\n"+
		"Short connections, %d/s over three backends, %d/s over ten, or %d at once; %d rounds of %g s; clients wait for %s.\n"+
		"Failed are of all rounds; latencies are medians (and ranges) of the rounds, in ms, from when a client was to begin, of those\n"+
		"that were answered; with a fault, what is added to the same system's in the same round with all well.\n"+
		"Begun late is how much of the longest the machine has added, by not letting a client begin at its time.\n",
		r.Environment, r.Rate, r.TenRate, r.Wave, r.Rounds, r.Seconds, r.Patience)
}

// tables shows one fault: one table, or one per wave.
func (r *failoverReport) tables(scene, fault string) string {
	var titles []string
	tables := map[string]*table{}
	for _, s := range r.Series {
		if s.Scene != scene || s.Fault != fault {
			continue
		}
		title := s.title()
		if tables[title] == nil {
			titles, tables[title] = append(titles, title), newTable(s.columns()...)
		}
		tables[title].add(s.row(r.find(s.Scene, allWell, s.System, s.Wave))...)
	}
	var b strings.Builder
	for _, title := range titles {
		fmt.Fprintf(&b, "\n**%s**\n\n%s", title, tables[title])
	}
	return b.String()
}

func (s *failoverSeries) columns() []string {
	if s.Fault == allWell {
		return []string{"system", "failed", "how", "p50", "p99", "max", "begun late"}
	}
	return []string{"system", "failed", "how", "added p50", "added p99", "added max", "begun late"}
}

func (s *failoverSeries) row(base *failoverSeries) []string {
	asked, f := s.failures()
	return []string{s.System, fmt.Sprintf("%d of %d", f.sum(), asked), f.String(),
		s.latency(base, func(m *failoverSample) time.Duration { return m.P50 }),
		s.latency(base, func(m *failoverSample) time.Duration { return m.P99 }),
		s.latency(base, func(m *failoverSample) time.Duration { return m.Max }),
		s.latency(nil, func(m *failoverSample) time.Duration { return m.Late })}
}

func (s *failoverSeries) failures() (asked int, sum failures) {
	for _, m := range s.Samples {
		asked, sum = asked+m.Asked, sum.add(m.Failures)
	}
	return asked, sum
}

// latency is what a series adds to another, round by round; to itself, what it is.
func (s *failoverSeries) latency(base *failoverSeries, of func(*failoverSample) time.Duration) string {
	var values []time.Duration
	for i, m := range s.Samples {
		if m.Failures.sum() == m.Asked {
			continue // there is none
		}
		v := of(m)
		if base != nil && base != s {
			if i >= len(base.Samples) || base.Samples[i].Failures.sum() == base.Samples[i].Asked {
				continue
			}
			v -= of(base.Samples[i])
		}
		values = append(values, v)
	}
	if len(values) == 0 {
		return "-"
	}
	all := spreadOf(values)
	if len(values) == 1 {
		return millis(all.median)
	}
	return fmt.Sprintf("%s (%s to %s)", millis(all.median), millis(all.min), millis(all.max))
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()*1e3) }

// verdict is an error if redial lost a client that it could have saved, or if anybody was given another's answer.
func (r *failoverReport) verdict() error {
	var errs []error
	for _, s := range r.Series {
		asked, f := s.failures()
		if s.System == "redial" && s.Lossless && f.sum() > 0 || f.Wrong > 0 {
			errs = append(errs, fmt.Errorf("%s, %s: of %d clients, %s", s.title(), s.System, asked, f))
		}
	}
	return errors.Join(errs...)
}
