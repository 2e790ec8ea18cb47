package main

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"redial/proxy"
)

// only leaves out all Services but those named, and what is not about Services.
func (s *status) only(names []string) error {
	if len(names) == 0 {
		return nil
	}
	var found []proxy.ServiceStatus
	for _, name := range names {
		namespace, service, whole := strings.Cut(name, "/")
		if !whole {
			service = namespace
		}
		before := len(found)
		for _, svc := range s.Services {
			if svc.Name == service && (!whole || svc.Namespace == namespace) {
				found = append(found, svc)
			}
		}
		if len(found) == before {
			return fmt.Errorf("no Service %s among the %d that the proxy knows: redial status lists them", name, len(s.Services))
		}
	}
	s.Services, s.Problems = found, nil
	return nil
}

// printUsage is about what all Services share.
func (s *status) printUsage(w io.Writer) {
	u := &s.Usage
	fmt.Fprintf(w, "%d of at most %d connections, %d of %d UDP sessions", u.Connections, u.MaxConnections, u.Sessions, u.MaxSessions)
	ejected, waiting := 0, 0
	for _, svc := range s.Services {
		for _, p := range svc.Ports {
			if p.Limit != nil {
				waiting += p.Limit.Waiting
			}
			for _, f := range p.Fronts {
				ejected += ejectedOf(f)
			}
		}
	}
	if ejected > 0 {
		fmt.Fprintf(w, ", backends ejected: %d", ejected)
	}
	if waiting > 0 {
		fmt.Fprintf(w, ", connections waiting: %d", waiting)
	}
	fmt.Fprintln(w)
}

func ejectedOf(f proxy.FrontendStatus) (n int) {
	for _, b := range f.Backends {
		if b.Ejection != nil {
			n++
		}
	}
	return n
}

func usableOf(f proxy.FrontendStatus) (n int) {
	for _, b := range f.Backends {
		if b.State != proxy.StateUnused {
			n++
		}
	}
	return n
}

// notes are what deserves attention, beyond the columns.
func notes(p proxy.PortStatus, f proxy.FrontendStatus) string {
	var notes []string
	note := func(n uint64, format string) {
		if n > 0 {
			notes = append(notes, fmt.Sprintf(format, n))
		}
	}
	if n := ejectedOf(f); n > 0 && n == usableOf(f) {
		notes = append(notes, "ALL BACKENDS EJECTED")
	} else {
		note(uint64(n), "%d ejected")
	}
	if l := p.Limit; l != nil {
		if l.Max > 0 && l.Used >= l.Max {
			note(uint64(l.Max), "at its limit of %d")
		}
		note(uint64(l.Waiting), "%d waiting")
	}
	s := f.Stats
	note(s.Limited-s.QueueTimeouts, "%d refused by a limit")
	note(s.QueueTimeouts, "%d waited too long")
	note(s.ShareWaits, "waited for a share of all connections (%d times)")
	note(s.Strays, "%d reset as not meant for it")
	note(s.FDWaits, "%d waited for descriptors")
	note(s.AcceptErrors, "%d accept errors")
	note(s.Evicted, "%d sessions evicted")
	note(f.Balancer.RetriesRefused, "%d retries refused")
	note(f.Balancer.Evictions, "%d clients' affinity forgotten")
	return strings.Join(notes, ", ")
}

func printBackends(w io.Writer, s *proxy.ServiceStatus, now time.Time) {
	for _, p := range s.Ports {
		for _, f := range p.Fronts {
			for _, b := range f.Backends {
				connect := "-"
				if b.ConnectTime > 0 {
					connect = rough(b.ConnectTime)
				}
				fmt.Fprintf(w, "%s/%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%s\n", s.Namespace, s.Name, portName(p), b.Address, backendState(b),
					b.Weight, b.Active, b.Connected, b.Failed, connect, lastError(b, now))
			}
		}
	}
}

func backendState(b proxy.BackendStatus) string {
	if b.Ejection != nil {
		return "ejected"
	}
	return b.State
}

// lastError is why a backend is ejected, or what has happened to it at some time.
func lastError(b proxy.BackendStatus, now time.Time) string {
	if e := b.Ejection; e != nil {
		next := "being tested"
		if until := e.Until.Sub(now); until > 0 {
			next = "tested in " + rough(until)
		}
		times := ""
		if e.Times > 1 {
			times = fmt.Sprintf(", %d times in a row", e.Times)
		}
		return fmt.Sprintf("ejected for %s%s, %s: %s", rough(now.Sub(e.Since)), times, next, oneLine(e.Error))
	}
	if b.LastTime == nil {
		return "-"
	}
	return fmt.Sprintf("%s ago: %s", now.Sub(*b.LastTime).Round(time.Second), oneLine(b.LastError))
}

// rough rounds a duration to about two digits.
func rough(d time.Duration) string {
	unit := time.Microsecond
	for d >= 100*unit && unit < time.Second {
		unit *= 10
	}
	return d.Round(unit).String()
}

func printCounters(w io.Writer, s *proxy.ServiceStatus) {
	for _, p := range s.Ports {
		for _, f := range p.Fronts {
			counters := append(counted(f.Stats), counted(f.Balancer)...)
			if len(counters) == 0 {
				counters = []string{"all 0"}
			}
			fmt.Fprintf(w, "%s/%s\t%s\t%s\t%s\t%s\n", s.Namespace, s.Name, portName(p), f.Scheduler, settingsOf(p), strings.Join(counters, ", "))
		}
	}
}

// settingsOf are what a Service asks for, and how much of its limits is used.
func settingsOf(p proxy.PortStatus) string {
	const most = 64 // bytes; weights can be many
	parts := slices.Clone(p.Asked)
	for i, a := range parts {
		if len(a) > most {
			parts[i] = a[:most] + "..."
		}
	}
	if l := p.Limit; l != nil {
		if l.Max > 0 {
			parts = append(parts, fmt.Sprintf("%d connections count", l.Used))
		}
		parts = append(parts, fmt.Sprintf("%d of at most %d wait, each for %s", l.Waiting, l.Queue, l.Timeout))
	}
	if parts == nil {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// counted lists the numbers in a struct that are not 0, by their names in JSON.
func counted(counters any) (out []string) {
	v := reflect.ValueOf(counters)
	for i := range v.NumField() {
		if n := v.Field(i); !n.IsZero() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			out = append(out, fmt.Sprintf("%s %d", name, n.Interface()))
		}
	}
	return out
}
