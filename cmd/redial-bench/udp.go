package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// udpOptions are the flags of redial-bench udp.
type udpOptions struct {
	options
	clients  []int
	oneShots int
}

func udpCommand() *cobra.Command {
	o := &udpOptions{options: defaultOptions(), clients: []int{1, 64}, oneShots: 20_000}
	cmd := o.command(&cobra.Command{
		Use:   "udp",
		Short: "Measure UDP: request/response, and clients that ask only once",
		Long: `Serves one UDP echo by kernel DNAT, by nginx stream and by redial, in network namespaces that are
made for it, and sends them requests of 64 bytes in turn. Each reply is compared with its request;
one that is lost or wrong is shown, and makes the run fail if it was to be redial's.`,
	}, o.validate, func(ctx context.Context, out io.Writer, n *network) error { return benchUDP(ctx, out, n, o) })
	f := cmd.Flags()
	f.IntSliceVar(&o.clients, "clients", o.clients, "numbers of clients that ask at the same time")
	f.IntVar(&o.oneShots, "one-shots", o.oneShots, "clients that ask once, in each of two bursts; 0: none")
	return cmd
}

func (o *udpOptions) validate() error {
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

func benchUDP(ctx context.Context, out io.Writer, n *network, o *udpOptions) error {
	addresses := 2*o.oneShots/sourcePorts + 1
	if err := n.addClientAddresses(addresses); err != nil {
		return err
	}
	if err := n.backend.Start(peer("udp-echo", fmt.Sprintf("%s:%d", backendIP, backendPort))); err != nil {
		return fmt.Errorf("starting the backend: %w", err)
	}
	all, err := udpSystems(n, o)
	if err != nil {
		return err
	}
	report := &udpReport{Environment: environmentOf(all)}
	present := o.present(all)
	if report.Loads, err = measureLoads(ctx, n, present, o); err != nil {
		return err
	}
	if report.OneShots, err = measureBursts(ctx, n, present, o); err != nil {
		return err
	}
	fmt.Fprint(out, report)
	if err := o.write(report); err != nil {
		return err
	}
	return report.verdict()
}

// udpSystems are those to compare, in the order of measuring.
func udpSystems(n *network, o *udpOptions) ([]*system, error) {
	dnat, err := dnat(n, "kernel DNAT", "udp", []string{dnatIP}, []string{backendIP})
	if err != nil {
		return nil, err
	}
	nginx, err := nginxUDP(n)
	if err != nil {
		return nil, err
	}
	self, err := redial(n, o.redial, "udp", backendIP)
	return []*system{dnat, nginx, self}, err
}

// raiseFileLimit makes room for a socket per one-shot client. Without the privilege, what there is has to do.
func raiseFileLimit() {
	const wanted = 1 << 17
	if fileLimit() < wanted {
		unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: wanted, Max: wanted})
	}
}

// measureLoads measures the systems in turn, so that the machine's moods are shared out among them.
func measureLoads(ctx context.Context, n *network, all []*system, o *udpOptions) ([]*udpSeries, error) {
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
				args := []string{"udp-load", s.address, "--clients", fmt.Sprint(c), "--for", o.duration().String()}
				if len(pids) > 0 {
					args = append(args, "--pids", pidList(pids))
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
func measureBursts(ctx context.Context, n *network, all []*system, o *udpOptions) ([]*udpBursts, error) {
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
