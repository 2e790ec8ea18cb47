package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// options are the flags that all measurements have.
type options struct {
	rounds       int
	seconds      float64
	systems      []string
	redial, json string
}

// defaultOptions are those of most.
func defaultOptions() options { return options{rounds: 5, seconds: 2, redial: besideUs("redial")} }

func (o *options) validate() error {
	if o.rounds < 1 || o.rounds > 1000 {
		return fmt.Errorf("--rounds %d: want 1 to 1000", o.rounds)
	}
	if !(o.seconds >= 0.1 && o.seconds <= 3600) {
		return fmt.Errorf("--seconds %g: want 0.1 to 3600", o.seconds)
	}
	return nil
}

// duration is that of one measurement.
func (o *options) duration() time.Duration { return time.Duration(o.seconds * float64(time.Second)) }

// present are the systems that are installed and asked for.
func (o *options) present(all []*system) []*system {
	return slices.DeleteFunc(all, func(s *system) bool { return s.absent != "" || !among(o.systems, s.name) })
}

// among reports that name contains one of the parts, or that there are none.
func among(parts []string, name string) bool {
	return len(parts) == 0 || slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(name, p) })
}

// command completes cmd, to which its own flags are added afterwards: once all flags are validated, measure runs as the node
// of a network of its own.
func (o *options) command(cmd *cobra.Command, validate func() error, measure func(context.Context, io.Writer, *network) error) *cobra.Command {
	inside := false
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(o.validate(), validate()); err != nil {
			return err
		}
		if !inside {
			return isolated(cmd.Context())
		}
		raiseFileLimit()
		n, err := newNetwork()
		if err != nil {
			return fmt.Errorf("making the network: %w", err)
		}
		return measure(cmd.Context(), cmd.OutOrStdout(), n)
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&o.rounds, "rounds", o.rounds, "how often each system is measured, in turn")
	f.Float64Var(&o.seconds, "seconds", o.seconds, "how long each measurement takes")
	f.StringSliceVar(&o.systems, "systems", o.systems, "only systems whose names contain one of these")
	f.StringVar(&o.redial, "redial", o.redial, "the redial program")
	f.StringVar(&o.json, "json", o.json, "file for all measurements as JSON")
	f.BoolVar(&inside, "inside", false, "already in the namespaces")
	f.MarkHidden("inside")
	return cmd
}

// besideUs is the path of a program in the same folder as this one.
func besideUs(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(self), name)
}

// write leaves a report where --json says, if it does.
func (o *options) write(report any) error {
	if o.json == "" {
		return nil
	}
	b, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.json, append(b, '\n'), 0o644)
}

// pidList writes numbers of processes as a flag's value.
func pidList(pids []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(pids), " ", ","), "[]")
}
