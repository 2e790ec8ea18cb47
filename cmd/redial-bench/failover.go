package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

// failoverOptions are the flags of redial-bench failover.
type failoverOptions struct {
	options
	rate, tenRate, wave int
	warm, patience      time.Duration
	faults              []string
	before              string
}

func failoverCommand() *cobra.Command {
	o := &failoverOptions{options: defaultOptions(), rate: 500, tenRate: 2000, wave: 1000, warm: time.Second, patience: 10 * time.Second}
	o.rounds, o.seconds = 3, 4
	cmd := o.command(&cobra.Command{
		Use:   "failover",
		Short: "Measure what clients notice of backends that fail",
		Long: `Serves TCP backends by kernel DNAT, by HAProxy, by nginx stream and by redial, in network namespaces
that are made for it, and lets one of the backends fail while short connections are begun at a fixed
rate. Nothing tells the systems of it. Each process is started anew for each measurement and warmed
up with all backends well, except before the clients that come all at once.

Every answer is compared with its request. Latencies are from the time at which a client was to begin,
so that a stall is seen in full, and only of clients that were answered. "Tuned" are connect timeouts
of 250 ms, and for HAProxy health checks (each second, and by what it sees) and an immediate change of
server. The run fails if redial lost a client that could have been saved.`,
	}, o.validate, func(ctx context.Context, out io.Writer, n *network) error { return benchFailover(ctx, out, n, o) })
	f := cmd.Flags()
	f.IntVar(&o.rate, "rate", o.rate, "clients per second over three backends")
	f.IntVar(&o.tenRate, "ten-rate", o.tenRate, "clients per second over ten backends")
	f.IntVar(&o.wave, "wave", o.wave, "clients that come all at once")
	f.DurationVar(&o.warm, "warm", o.warm, "how long clients are begun for before those that are counted")
	f.DurationVar(&o.patience, "patience", o.patience, "how long a client waits for its answer")
	f.StringSliceVar(&o.faults, "faults", o.faults, "only faults whose names, with that of their backends, contain one of these; always \""+allWell+"\" of the same backends")
	f.StringVar(&o.before, "before", o.before, "another redial program, measured as well")
	return cmd
}

func (o *failoverOptions) validate() error {
	for _, f := range []struct {
		name          string
		value, atMost int
	}{{"rate", o.rate, 20_000}, {"ten-rate", o.tenRate, 20_000}, {"wave", o.wave, 20_000}} {
		if f.value < 1 || f.value > f.atMost {
			return fmt.Errorf("--%s %d: want 1 to %d", f.name, f.value, f.atMost)
		}
	}
	if o.warm < 0 || o.warm > time.Hour {
		return fmt.Errorf("--warm %s: want 0s to 1h", o.warm)
	}
	if o.patience <= 0 {
		return fmt.Errorf("--patience %s: want more than 0", o.patience)
	}
	return nil
}

func benchFailover(ctx context.Context, out io.Writer, n *network, o *failoverOptions) error {
	for _, h := range []interface{ Do(func() error) error }{n.node, n.client} {
		if err := h.Do(reusePorts); err != nil {
			return err
		}
	}
	most := 0
	for _, sc := range scenes {
		most = max(most, sc.pods)
	}
	p, err := startPods(n, most)
	if err != nil {
		return err
	}
	report := &failoverReport{Rounds: o.rounds, Seconds: o.seconds, Rate: o.rate, TenRate: o.tenRate, Wave: o.wave, Patience: o.patience}
	for i, sc := range scenes {
		faults := slices.DeleteFunc(slices.Clone(sc.faults), func(f fault) bool { return f.name != allWell && !among(o.faults, sc.name+": "+f.name) })
		if len(faults) == 1 && !among(o.faults, sc.name+": "+allWell) {
			continue
		}
		p.count = sc.pods
		all, err := failoverSystems(n, o, podAddresses(sc.pods), servicePort+20+i) // with rules of their own for the kernel
		if err != nil {
			return err
		}
		if report.Environment.Versions == nil {
			report.Environment = environmentOf(all)
			fmt.Fprint(out, report.heading())
		}
		all = o.present(all)
		if err := report.measure(ctx, p, sc, faults, all, o); err != nil {
			return err
		}
		for _, f := range faults {
			fmt.Fprint(out, report.tables(sc.name, f.name))
		}
		if err := p.heal(); err != nil {
			return err
		}
	}
	if err := o.write(report); err != nil {
		return err
	}
	return report.verdict()
}

// measure measures the systems in turn, so that the machine's moods are shared out among them, and each round with all well
// as well as with the faults, since the one is compared with the others.
func (r *failoverReport) measure(ctx context.Context, p *pods, sc scene, faults []fault, all []*system, o *failoverOptions) error {
	for round := range o.rounds {
		for _, f := range faults {
			progress("%s, round %d of %d: %s", sc.name, round+1, o.rounds, f.name)
			for _, s := range all {
				samples, err := s.measureFailover(ctx, p, sc, f, o)
				if err != nil {
					return s.explain(fmt.Errorf("%s, %s, %s: %w", sc.name, f.name, s.name, err))
				}
				for i, sample := range samples {
					r.add(sc, f, s.name, i+1, sample)
				}
			}
		}
	}
	return nil
}

// measureFailover returns one sample, or with waves one of the first and one of the others.
func (s *system) measureFailover(ctx context.Context, p *pods, sc scene, f fault, o *failoverOptions) (samples []*failoverSample, err error) {
	if err := errors.Join(p.heal(), forgetFlows()); err != nil {
		return nil, err
	}
	if err := s.await(ctx, p.n, probeTCP); err != nil {
		return nil, err
	}
	defer s.stop()
	if sc.greeted {
		if err := p.tell("greet 1"); err != nil {
			return nil, err
		}
	}
	duration := o.duration()
	args := []string{"failover-load", s.address, "--patience", o.patience.String(), "--for", duration.String(), "--warm", o.warm.String()}
	switch {
	case sc.wave:
		args = append(args, "--wave", fmt.Sprint(o.wave))
	case sc.ten:
		args = append(args, "--rate", fmt.Sprint(o.tenRate))
	default:
		args = append(args, "--rate", fmt.Sprint(o.rate))
	}
	if sc.greeted {
		args = append(args, "--greeted")
	}
	return samples, p.besides(ctx, f, duration, &samples, peer(args...))
}

// besides lets the fault happen to the clients of a load, and decodes what it prints.
func (p *pods) besides(ctx context.Context, f fault, duration time.Duration, samples *[]*failoverSample, load *exec.Cmd) error {
	in, err := load.StdinPipe()
	if err != nil {
		return err
	}
	out, err := load.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.n.client.Start(load); err != nil {
		return fmt.Errorf("starting the clients: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { load.Process.Kill() })
	defer stop()
	abandon := func(err error) error {
		load.Process.Kill()
		return errors.Join(ctx.Err(), err, load.Wait())
	}
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); line != "ready\n" {
		return abandon(fmt.Errorf("the clients say %q: %w", line, err))
	}
	if f.before != nil {
		if err := f.before(p); err != nil {
			return abandon(err)
		}
	}
	if _, err := io.WriteString(in, "go\n"); err != nil {
		return abandon(err)
	}
	over, ended := context.WithCancel(ctx)
	struck := make(chan error, 1)
	go func() {
		if f.during == nil {
			struck <- nil
			return
		}
		struck <- f.during(over, p, duration)
	}()
	err = json.NewDecoder(lines).Decode(samples)
	ended()
	if err = errors.Join(err, <-struck); err != nil {
		return abandon(err)
	}
	return load.Wait()
}
