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
	"golang.org/x/sys/unix"
)

// udpOptions are the flags of redial-bench udp.
type udpOptions struct {
	rounds, seconds int
	clients         []int
	oneShots        int
	redial, json    string
}

func udpCommand() *cobra.Command {
	o := udpOptions{rounds: 5, seconds: 2, clients: []int{1, 64}, oneShots: 20_000, redial: besideUs("redial")}
	inside := false
	cmd := &cobra.Command{
		Use:   "udp",
		Short: "Measure UDP: request/response, and clients that ask only once",
		Long: `Serves one UDP echo by kernel DNAT, by nginx stream and by redial, in network namespaces that are
made for it, and sends them requests of 64 bytes in turn. Each reply is compared with its request;
one that is lost or wrong is shown, and makes the run fail if it was to be redial's.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			if !inside {
				return isolated(cmd.Context())
			}
			return benchUDP(cmd.Context(), cmd.OutOrStdout(), o)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&o.rounds, "rounds", o.rounds, "how often each system is measured, in turn")
	f.IntVar(&o.seconds, "seconds", o.seconds, "how long each measurement takes")
	f.IntSliceVar(&o.clients, "clients", o.clients, "numbers of clients that ask at the same time")
	f.IntVar(&o.oneShots, "one-shots", o.oneShots, "clients that ask once, in each of two bursts; 0: none")
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

func (o *udpOptions) validate() error {
	if o.rounds < 1 || o.seconds < 1 {
		return errors.New("--rounds and --seconds must be at least 1")
	}
	for _, c := range o.clients {
		if c < 1 || c > 10_000 {
			return fmt.Errorf("--clients %d: want 1 to 10000", c)
		}
	}
	if o.oneShots < 0 || o.oneShots > 1_000_000 {
		return fmt.Errorf("--one-shots %d: want 0 to 1000000", o.oneShots)
	}
	return nil
}

// udpReport is all that was measured.
type udpReport struct {
	Environment environment  `json:"environment"`
	Loads       []*udpSeries `json:"loads"`
	OneShots    []*udpBursts `json:"oneShots"`
}

// udpSeries is one system under one number of clients, a sample per round.
type udpSeries struct {
	System  string       `json:"system"`
	Clients int          `json:"clients"`
	Samples []*udpSample `json:"samples"`
}

type udpBursts struct {
	System string   `json:"system"`
	Bursts []*burst `json:"bursts"`
}

func benchUDP(ctx context.Context, out io.Writer, o udpOptions) error {
	raiseFileLimit()
	n, err := newNetwork()
	if err != nil {
		return fmt.Errorf("making the network: %w", err)
	}
	addresses := 2*o.oneShots/sourcePorts + 1
	if err := n.addClientAddresses(addresses); err != nil {
		return err
	}
	if err := n.backend.Start(peer("udp-echo", fmt.Sprintf("%s:%d", backendIP, backendPort))); err != nil {
		return fmt.Errorf("starting the backend: %w", err)
	}
	all, err := systems(n, o.redial, "udp")
	if err != nil {
		return err
	}
	report := &udpReport{Environment: environmentOf(all)}
	present := slices.DeleteFunc(all, func(s *system) bool { return s.absent != "" })
	if report.Loads, err = measureLoads(ctx, n, present, o); err != nil {
		return err
	}
	if report.OneShots, err = measureBursts(ctx, n, present, o); err != nil {
		return err
	}
	fmt.Fprint(out, report)
	if o.json != "" {
		b, err := json.MarshalIndent(report, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.json, append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	return report.verdict()
}

// raiseFileLimit makes room for a socket per one-shot client. Without the privilege, what there is has to do.
func raiseFileLimit() {
	const wanted = 1 << 17
	if fileLimit() < wanted {
		unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: wanted, Max: wanted})
	}
}

// measureLoads measures the systems in turn, so that the machine's moods are shared out among them.
func measureLoads(ctx context.Context, n *network, all []*system, o udpOptions) ([]*udpSeries, error) {
	var series []*udpSeries
	for _, s := range all {
		if err := s.await(ctx, n, probeUDP); err != nil {
			return nil, err
		}
		defer s.stop()
		for _, c := range o.clients {
			series = append(series, &udpSeries{System: s.name, Clients: c})
		}
	}
	for round := range o.rounds {
		progress("round %d of %d", round+1, o.rounds)
		for j, c := range o.clients {
			for i, s := range all {
				pids, err := s.pids()
				if err != nil {
					return nil, err
				}
				args := []string{"udp-load", s.address, "--clients", fmt.Sprint(c), "--for", fmt.Sprintf("%ds", o.seconds)}
				if len(pids) > 0 {
					args = append(args, "--pids", strings.Trim(strings.ReplaceAll(fmt.Sprint(pids), " ", ","), "[]"))
				}
				sample := &udpSample{}
				if err := ask(ctx, n.client, sample, args...); err != nil {
					return nil, s.explain(err)
				}
				at := series[i*len(o.clients)+j]
				at.Samples = append(at.Samples, sample)
			}
		}
	}
	return series, nil
}

// measureBursts sends two bursts of one-shot clients to fresh processes: what only the first one leaves behind is kept for
// the next, what the second one adds is lost.
func measureBursts(ctx context.Context, n *network, all []*system, o udpOptions) ([]*udpBursts, error) {
	var results []*udpBursts
	for _, s := range all {
		if s.command == nil || o.oneShots == 0 {
			continue
		}
		r := &udpBursts{System: s.name}
		results = append(results, r)
		s.stop()
		if err := s.await(ctx, n, probeUDP); err != nil {
			return nil, err
		}
		select { // the probes' sessions have to end
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(2 * idleTimeout):
		}
		for i := range 2 {
			progress("%s: burst %d of 2", s.name, i+1)
			b, err := measureBurst(ctx, n, s, o.oneShots, i*o.oneShots)
			if err != nil {
				return nil, err
			}
			r.Bursts = append(r.Bursts, b)
		}
		s.stop()
	}
	return results, nil
}
