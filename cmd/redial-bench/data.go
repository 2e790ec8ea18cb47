package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// dataOptions are the flags of redial-bench data.
type dataOptions struct {
	options
	loads  []string
	before string
}

// dataLoads are what is measured, by name, as arguments of data-load.
var dataLoads = []struct{ name, args string }{
	{"short connections, 32 at once", "--short 32"},
	{"round trips on 1 connection", "--trips 1"},
	{"round trips on 16 connections", "--trips 16"},
	{"round trips on 256 connections", "--trips 256"},
	{"1 stream down", "--download 1"},
	{"1 stream up", "--upload 1"},
	{"16 streams down", "--download 16"},
	{"16 streams up", "--upload 16"},
	{"500 short connections a second beside 4 streams of 0.5 Gbit/s", "--short 10 --download 4 --pace 250000000"},
	{"4000 idle connections", "--idle 4000"},
}

func dataCommand() *cobra.Command {
	o := &dataOptions{options: defaultOptions()}
	cmd := o.command(&cobra.Command{
		Use:   "data",
		Short: "Measure TCP: short connections, round trips, streams and idle connections",
		Long: `Serves one TCP backend by kernel DNAT, by nginx stream, by HAProxy and by redial, in network namespaces
that are made for it, and measures them in turn under each load. "redial, no rules" is addressed
directly, as nginx and HAProxy are; "redial" by way of its REDIRECT rules, as by its clients.`,
	}, func() error { return nil }, func(ctx context.Context, out io.Writer, n *network) error { return benchData(ctx, out, n, o) })
	f := cmd.Flags()
	f.StringSliceVar(&o.loads, "loads", o.loads, "only loads whose names contain one of these")
	f.StringVar(&o.before, "before", o.before, "another redial program, measured as well")
	return cmd
}

// dataSeries is one system under one load, a sample per round.
type dataSeries struct {
	System  string        `json:"system"`
	Load    string        `json:"load"`
	Samples []*dataSample `json:"samples"`
}

func benchData(ctx context.Context, out io.Writer, n *network, o *dataOptions) error {
	for _, h := range []interface{ Do(func() error) error }{n.node, n.client} {
		if err := h.Do(reusePorts); err != nil {
			return err
		}
	}
	if err := n.backend.Start(peer("data-peer", fmt.Sprintf("%s:%d", backendIP, backendPort))); err != nil {
		return fmt.Errorf("starting the backend: %w", err)
	}
	all, err := dataSystems(n, o)
	if err != nil {
		return err
	}
	environment := environmentOf(all)
	all = o.present(all)
	for _, s := range all {
		if err := s.await(ctx, n, probeTCP); err != nil {
			return err
		}
		defer s.stop()
	}
	var series []*dataSeries
	for _, load := range dataLoads {
		if !among(o.loads, load.name) {
			continue
		}
		first := len(series)
		for _, s := range all {
			series = append(series, &dataSeries{System: s.name, Load: load.name})
		}
		for round := range o.rounds {
			progress("%s: round %d of %d", load.name, round+1, o.rounds)
			for i, s := range all {
				sample, err := s.measureData(ctx, n, strings.Fields(load.args), o.duration())
				if err != nil {
					return err
				}
				series[first+i].Samples = append(series[first+i].Samples, sample)
			}
		}
		fmt.Fprintf(out, "\n%s\n\n%s", load.name, dataTable(series[first:]))
	}
	fmt.Fprintf(out, "\n%s", environment)
	return o.write(map[string]any{"environment": environment, "series": series})
}

// reusePorts lets connections be made at any rate: each leaves its port in TIME_WAIT for a minute.
func reusePorts() error {
	return errors.Join(os.WriteFile("/proc/sys/net/ipv4/tcp_tw_reuse", []byte("1"), 0),
		os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("10000 60999"), 0))
}

// probeTCP has one echo.
func probeTCP(address string) error {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	b := []byte{askEcho}
	if _, err := conn.Write(b); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, b)
	return err
}

func (s *system) measureData(ctx context.Context, n *network, load []string, duration time.Duration) (*dataSample, error) {
	if slices.Contains(load, "--idle") && s.command != nil { // what the loads before have left is not the connections'
		s.stop()
		if err := s.await(ctx, n, probeTCP); err != nil {
			return nil, err
		}
	}
	pids, err := s.pids()
	if err != nil {
		return nil, err
	}
	args := append([]string{"data-load", s.address, "--for", duration.String()}, load...)
	if len(pids) > 0 {
		args = append(args, "--pids", pidList(pids))
	}
	before, err := footprintOf(pids)
	if err != nil {
		return nil, err
	}
	sample := &dataSample{}
	if err := ask(ctx, n.client, sample, args...); err != nil {
		return nil, s.explain(err)
	}
	sample.Resident -= before.Resident
	sample.FDs -= before.FDs
	// Its connections end now, which is not to be counted with the next system.
	return sample, poll(ctx, 10*time.Second, func() error {
		if used, err := footprintOf(pids); err == nil && used.FDs > before.FDs+64 {
			return fmt.Errorf("%s: connections do not end", s.name)
		}
		return nil
	})
}

// dataSystems are those to compare, in the order of measuring.
func dataSystems(n *network, o *dataOptions) ([]*system, error) {
	all, err := systems(n, o.redial, "tcp")
	if err != nil {
		return nil, err
	}
	haproxy, err := haproxyTCP(n)
	if err != nil {
		return nil, err
	}
	all = append(all, haproxy, bare(n, "redial, no rules", o.redial, 9001))
	if o.before != "" {
		all = append(all, bare(n, "before, no rules", o.before, 9002))
	}
	return all, nil
}

// bare is redial without rules, addressed directly.
func bare(n *network, name, path string, port int) *system {
	s := &system{name: name, address: fmt.Sprintf("%s:%d", nodeIP, port)}
	s.command = func() *exec.Cmd {
		return exec.Command(path, "--manifests", filepath.Join(n.dir, "manifests"), "--admin-socket", filepath.Join(n.dir, name+".sock"),
			"--drain-timeout", "0s", "--interception", "none", "--proxy-bind-address", nodeIP, "--proxy-port-range", fmt.Sprint(port))
	}
	return s
}

// dataTable shows one load. Bulk rates are of the payload.
func dataTable(series []*dataSeries) *table {
	t := newTable("system", "per second", "CPU us each", "p50 us", "p99 us", "Gbit/s", "CPU ms/GiB", "KiB each", "fds each", "failed")
	for _, s := range series {
		var rate, each, p50, p99, bits, perGiB []float64
		failed := 0
		idle := ""
		fds := ""
		for _, v := range s.Samples {
			seconds := v.Elapsed.Seconds()
			if v.Done > 0 {
				rate = append(rate, float64(v.Done)/seconds)
				each = append(each, float64(v.CPU)/float64(v.Done))
				p50, p99 = append(p50, float64(v.P50)), append(p99, float64(v.P99))
			}
			if v.Bytes > 0 {
				bits = append(bits, float64(v.Bytes)*8/seconds/1e9)
				perGiB = append(perGiB, v.CPU.Seconds()*1e3/(float64(v.Bytes)/(1<<30)))
			}
			if strings.Contains(s.Load, "idle") {
				idle = fmt.Sprintf("%.2f", float64(v.Resident)/1024/4000)
				fds = fmt.Sprintf("%.2f", float64(v.FDs)/4000)
			}
			failed += v.Failed
		}
		cell := func(values []float64, one func(float64) string) string {
			if len(values) == 0 {
				return ""
			}
			return spreadOf(values).format(one)
		}
		t.add(s.System, cell(rate, perSecond), cell(each, micros), cell(p50, micros), cell(p99, micros),
			cell(bits, func(v float64) string { return fmt.Sprintf("%.2f", v) }),
			cell(perGiB, perSecond), idle, fds, fmt.Sprint(failed))
	}
	return t
}
