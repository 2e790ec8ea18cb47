package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// String is the report in Markdown.
func (r *udpReport) String() string {
	var b strings.Builder
	b.WriteString("## UDP\n" + r.Environment.String() + "\n")
	fmt.Fprintf(&b, "Request/response, 64 bytes; CPU of the proxy's processes; medians (and ranges) of the rounds:\n\n")
	b.WriteString(r.loadTable().String())
	if ratios := r.ratioTable(); len(ratios.rows) > 1 {
		fmt.Fprintf(&b, "\nredial relative to nginx, round by round:\n\n%s", ratios)
	}
	if len(r.OneShots) > 0 {
		fmt.Fprintf(&b, "\nClients that ask once, each from a port of its own, one after the other; sessions end after %s:\n\n%s", idleTimeout, r.burstTable())
	}
	return b.String()
}

func (r *udpReport) loadTable() *table {
	t := newTable("system", "clients", "round trips/s", "p50, µs", "p99, µs", "CPU per datagram, µs", "faults")
	for _, s := range r.Loads {
		cpu := "-"
		if spreadOf(s.each(cpuOf)).max > 0 {
			cpu = spreadOf(s.each(cpuOf)).format(micros)
		}
		t.add(s.System, fmt.Sprint(s.Clients), spreadOf(s.each(rateOf)).format(perSecond),
			micros(spreadOf(s.each(func(m *udpSample) float64 { return float64(m.P50) })).median),
			micros(spreadOf(s.each(func(m *udpSample) float64 { return float64(m.P99) })).median), cpu, s.faults().String())
	}
	return t
}

func rateOf(m *udpSample) float64 { return m.Rate }

func cpuOf(m *udpSample) float64 { return float64(m.CPU) }

func (s *udpSeries) each(f func(*udpSample) float64) []float64 {
	values := make([]float64, len(s.Samples))
	for i, m := range s.Samples {
		values[i] = f(m)
	}
	return values
}

func (s *udpSeries) faults() udpFaults {
	var sum udpFaults
	for _, m := range s.Samples {
		sum = sum.add(m.Faults)
	}
	return sum
}

// ratioTable compares measurements that were made within seconds of each other, which a noisy machine distorts least.
func (r *udpReport) ratioTable() *table {
	t := newTable("clients", "rate", "CPU per datagram")
	for _, own := range r.Loads {
		for _, other := range r.Loads {
			if own.System == "redial" && other.System == "nginx stream" && own.Clients == other.Clients {
				t.add(fmt.Sprint(own.Clients), spreadOf(quotients(own.each(rateOf), other.each(rateOf))).format(ratio),
					spreadOf(quotients(own.each(cpuOf), other.each(cpuOf))).format(ratio))
			}
		}
	}
	return t
}

func quotients(a, b []float64) []float64 {
	q := make([]float64, 0, len(a))
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			q = append(q, a[i]/b[i])
		}
	}
	return q
}

func (r *udpReport) burstTable() *table {
	t := newTable("system", "burst", "clients", "per second", "unanswered", "CPU per client, µs",
		"descriptors before, most, after", "resident MiB before, most, after", "at rest after")
	for _, s := range r.OneShots {
		for i, b := range s.Bursts {
			rest := fmt.Sprintf("%.1f s", b.Rest.Seconds())
			if !b.returned() {
				rest = "FAILED: never"
			}
			unanswered := fmt.Sprint(0)
			if b.Faults.any() {
				unanswered = b.Faults.String()
			}
			t.add(s.System, fmt.Sprint(i+1), fmt.Sprint(b.Clients), perSecond(float64(b.Clients)*float64(time.Second)/float64(max(b.Took, 1))), unanswered,
				micros(float64(b.CPU)/float64(max(b.Clients, 1))),
				fmt.Sprintf("%d, %d, %d", b.Before.FDs, b.During.FDs, b.After.FDs),
				fmt.Sprintf("%s, %s, %s", mebibytes(b.Before.Resident), mebibytes(b.During.Resident), mebibytes(b.After.Resident)), rest)
		}
	}
	return t
}

// verdict is an error if redial failed. What the others lose stands in the tables: nginx, for one, takes more sessions than
// it has descriptors for.
func (r *udpReport) verdict() error {
	var errs []error
	for _, s := range r.Loads {
		if f := s.faults(); f.any() && s.System == "redial" {
			errs = append(errs, fmt.Errorf("%s with %d clients: %s", s.System, s.Clients, f))
		}
	}
	for _, s := range r.OneShots {
		for i, b := range s.Bursts {
			if s.System != "redial" {
				continue
			}
			if b.Faults.any() {
				errs = append(errs, fmt.Errorf("%s, burst %d: %s", s.System, i+1, b.Faults))
			}
			if !b.returned() {
				errs = append(errs, fmt.Errorf("%s, burst %d: %d descriptors are left of %d, before there were %d", s.System, i+1, b.After.FDs, b.During.FDs, b.Before.FDs))
			}
		}
	}
	return errors.Join(errs...)
}
