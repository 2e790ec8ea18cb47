package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// scaleOptions are the flags of redial-bench scale.
type scaleOptions struct {
	rounds, adds, changes, connections int
	idle, churn                        time.Duration
	sizes                              []int
	systems, args                      []string
	localPorts                         string
	redial, before, kubeProxy, json    string
}

func scaleCommand() *cobra.Command {
	o := &scaleOptions{rounds: 3, adds: 10, changes: 20, connections: 2000, idle: 20 * time.Second, churn: 10 * time.Second,
		sizes: []int{1, 1000, 10000, 30000}, redial: besideUs("redial")}
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "Measure many Services: start, changes, first packets, and what they take",
		Long: `Serves so many Services with 4 endpoints each, which an API server of its own delivers, in network
namespaces that are made anew for each measurement: by redial with its rules in both of iptables' modes
and without rules, by a linear set of iptables rules, and by kube-proxy if it is given.

All clients go to the last Service. A change has taken effect when one of them gets the answer that it
should; the time is from when the API server sends it. CPU time includes that of programs run.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			return benchScale(cmd.Context(), cmd.OutOrStdout(), o)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntSliceVar(&o.sizes, "sizes", o.sizes, "how many Services")
	f.IntVar(&o.rounds, "rounds", o.rounds, "how often each system is measured, in turn")
	f.IntVar(&o.adds, "adds", o.adds, "how many Services are added in each measurement")
	f.IntVar(&o.changes, "changes", o.changes, "how often endpoints are changed in each measurement")
	f.IntVar(&o.connections, "connections", o.connections, "short connections in each measurement")
	f.DurationVar(&o.idle, "idle", o.idle, "how long nothing happens")
	f.DurationVar(&o.churn, "churn", o.churn, fmt.Sprintf("how long endpoints change %d times a second; 0s: not at all", churnRate))
	f.StringSliceVar(&o.systems, "systems", o.systems, "only systems whose names contain one of these")
	f.StringVar(&o.redial, "redial", o.redial, "the redial program")
	f.StringVar(&o.before, "before", o.before, "another redial program, measured as well")
	f.StringVar(&o.kubeProxy, "kube-proxy", o.kubeProxy, "the kube-proxy program; none: it is not measured")
	f.StringArrayVar(&o.args, "redial-arg", o.args, "an argument that redial is started with besides")
	f.StringVar(&o.localPorts, "local-ports", o.localPorts, "FIRST LAST of the ports that the kernel gives to the node's connections, where redial is told to use others for itself")
	f.StringVar(&o.json, "json", o.json, "file for all measurements as JSON")
	return cmd
}

func (o *scaleOptions) validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{{"rounds", o.rounds}, {"adds", o.adds}, {"changes", o.changes}, {"connections", o.connections}} {
		if f.value < 1 || f.value > 100_000 {
			return fmt.Errorf("--%s %d: want 1 to 100000", f.name, f.value)
		}
	}
	for _, size := range o.sizes {
		if size < 1 || size+o.adds > mostServices {
			return fmt.Errorf("--sizes %d: want 1 to %d, with those that are added", size, mostServices)
		}
	}
	if o.idle <= 0 || o.churn < 0 {
		return errors.New("--idle must be more than 0, --churn not less")
	}
	return nil
}

// scaleSeries is one system with so many Services, a sample per round.
type scaleSeries struct {
	System   string         `json:"system"`
	Services int            `json:"services"`
	Samples  []*scaleSample `json:"samples"`
	Failed   string         `json:"failed,omitempty"` // why there are no more
}

func benchScale(ctx context.Context, out io.Writer, o *scaleOptions) error {
	names := o.subjects()
	environment := environmentOf(o.versions())
	var series []*scaleSeries
	var failed []string
	for _, size := range o.sizes {
		first := len(series)
		for _, name := range names {
			series = append(series, &scaleSeries{System: name, Services: size})
		}
		for round := range o.rounds {
			for _, s := range series[first:] {
				progress("%d Services: round %d of %d: %s", size, round+1, o.rounds, s.System)
				if s.Failed != "" {
					continue
				}
				sample, err := o.cell(ctx, s.System, size)
				switch {
				case ctx.Err() != nil:
					return ctx.Err()
				case err != nil:
					s.Failed = err.Error()
				default:
					s.Samples = append(s.Samples, sample)
				}
			}
		}
		fmt.Fprintf(out, "\n%d Services\n\n%s", size, scaleTables(series[first:]))
	}
	fmt.Fprintf(out, "\nFirst packets beside those of the smallest number of Services\n\n%s", flatnessTable(series))
	fmt.Fprintf(out, "\n%s", environment)
	for _, s := range series {
		if s.Failed != "" {
			failed = append(failed, fmt.Sprintf("%s with %d Services", s.System, s.Services))
		}
	}
	if o.json != "" {
		b, err := json.MarshalIndent(map[string]any{"environment": environment, "series": series}, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.json, append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	if failed != nil {
		return fmt.Errorf("not measured: %s; see above", strings.Join(failed, ", "))
	}
	return nil
}

// beforePrefix marks the systems of --before.
const beforePrefix = "before: "

// subjects are the names of the systems to measure, in turn.
func (o *scaleOptions) subjects() []string {
	var names []string
	for _, s := range scaleSystems {
		if strings.HasPrefix(s.name, "kube-proxy") && o.kubeProxy == "" {
			continue
		}
		if o.before != "" && strings.HasPrefix(s.name, "redial") && among(o.systems, beforePrefix+s.name) {
			names = append(names, beforePrefix+s.name)
		}
		if among(o.systems, s.name) {
			names = append(names, s.name)
		}
	}
	return names
}

func (o *scaleOptions) versions() []*system {
	all := []*system{}
	for _, v := range []struct {
		name string
		args []string
	}{{"redial", []string{o.redial, "version"}}, {"iptables", []string{"iptables", "--version"}}, {"kube-proxy", []string{o.kubeProxy, "--version"}}} {
		s := &system{name: v.name}
		out, err := exec.Command(v.args[0], v.args[1:]...).Output()
		if s.version = strings.TrimSpace(string(out)); err != nil {
			s.absent = err.Error()
		} else if !strings.HasPrefix(s.version, v.name) {
			s.version = v.name + " " + s.version
		}
		all = append(all, s)
	}
	return all
}

// cell has one measurement made.
func (o *scaleOptions) cell(ctx context.Context, name string, size int) (*scaleSample, error) {
	c := scaleCell{
		System: strings.TrimPrefix(name, beforePrefix), Services: size, Adds: o.adds, Changes: o.changes, Connections: o.connections, Idle: o.idle, Churn: o.churn,
		Redial: o.redial, KubeProxy: o.kubeProxy, Args: o.args, LocalPorts: o.localPorts,
	}
	if name != c.System {
		c.Redial = o.before
	}
	b, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := isolate(ctx, &out, "scale-cell", string(b)); err != nil {
		return nil, err
	}
	sample := &scaleSample{}
	return sample, json.Unmarshal(out.Bytes(), sample)
}
