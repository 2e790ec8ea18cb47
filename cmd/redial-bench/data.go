package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// dataOptions are the flags of redial-bench data.
type dataOptions struct {
	options
	loads          []string
	idle, services int
	before         string
	syscalls       bool
}

func dataCommand() *cobra.Command {
	o := &dataOptions{options: defaultOptions(), idle: 8000, services: 200}
	cmd := o.command(&cobra.Command{
		Use:   "data",
		Short: "Measure TCP: short connections, round trips, streams, idle connections, many Services, few processors",
		Long: `Serves TCP backends by kernel DNAT, by nginx stream, by HAProxy, by a plain proxy of io.Copy and by
redial, in network namespaces that are made for it, and measures them in turn under each load.
"redial, no rules" is addressed directly, as the other proxies are; "redial" by way of its REDIRECT
rules, as by its clients.

Every byte is compared with what it should be: each request and its answer, and streams at both ends.
Connections that fail and those that bring a wrong byte are shown; the run fails if they were
redial's, or if anybody's brought a wrong one. Processor time is the proxy's own, of all its threads
and processes.`,
	}, o.validate, func(ctx context.Context, out io.Writer, n *network) error { return benchData(ctx, out, n, o) })
	f := cmd.Flags()
	f.StringSliceVar(&o.loads, "loads", o.loads, "only loads whose names contain one of these")
	f.IntVar(&o.idle, "idle", o.idle, "how many idle connections")
	f.IntVar(&o.services, "services", o.services, "how many Services are \"many\"")
	f.StringVar(&o.before, "before", o.before, "another redial program, measured as well")
	f.BoolVar(&o.syscalls, "syscalls", o.syscalls, "count the proxies' system calls per short connection instead, with strace")
	return cmd
}

func (o *dataOptions) validate() error {
	if o.idle < 1 || o.idle > 100_000 {
		return fmt.Errorf("--idle %d: want 1 to 100000", o.idle)
	}
	if o.services < 2 || o.services > 1000 {
		return fmt.Errorf("--services %d: want 2 to 1000", o.services)
	}
	return nil
}

// dataLoads is what is measured while the systems serve one layout.
type dataLoads struct {
	layout layout
	loads  []dataLoadArgs
}

// dataLoadArgs are arguments of data-load.
type dataLoadArgs struct{ name, args string }

const (
	shortLoad = "short connections, 32 at once"
	shortArgs = "--short 32"
)

func (o *dataOptions) all() []dataLoads {
	return []dataLoads{
		{layout{services: 1, backends: 1}, []dataLoadArgs{
			{shortLoad, shortArgs},
			{"round trips on 1 connection", "--trips 1"},
			{"round trips on 16 connections", "--trips 16"},
			{"round trips on 256 connections", "--trips 256"},
			{"1 stream down", "--download 1"},
			{"1 stream up", "--upload 1"},
			{"16 streams down", "--download 16"},
			{"16 streams up", "--upload 16"},
			{"500 short connections a second beside 4 streams of 0.5 Gbit/s", "--short 10 --download 4 --pace 250000000"},
			{fmt.Sprintf("%d idle connections", o.idle), fmt.Sprintf("--idle %d", o.idle)},
		}},
		{layout{services: o.services, backends: 4}, []dataLoadArgs{
			{fmt.Sprintf("%d Services of 4 backends, %s", o.services, shortLoad), shortArgs},
		}},
		{layout{services: 1, backends: 1, cores: []int{1, 2}}, []dataLoadArgs{
			{"1 and 2 cores, " + shortLoad, shortArgs},
			{"1 and 2 cores, round trips on 256 connections", "--trips 256"},
			{"1 and 2 cores, 16 streams down", "--download 16"},
		}},
	}
}

func benchData(ctx context.Context, out io.Writer, n *network, o *dataOptions) error {
	for _, h := range []interface{ Do(func() error) error }{n.node, n.client} {
		if err := h.Do(reusePorts); err != nil {
			return err
		}
	}
	r := &dataReport{Rounds: o.rounds, Seconds: o.seconds}
	backends := 0
	for _, d := range o.all() {
		backends = max(backends, d.layout.backends)
	}
	for _, address := range podAddresses(backends)[1:] { // the first is there
		if err := n.backend.AddAddress("eth0", address+"/24"); err != nil {
			return err
		}
	}
	if err := n.backend.Start(peer("data-peer", fmt.Sprintf("0.0.0.0:%d", backendPort))); err != nil {
		return fmt.Errorf("starting the backend: %w", err)
	}
	for _, d := range o.all() {
		d.loads = slices.DeleteFunc(d.loads, func(l dataLoadArgs) bool { return !among(o.loads, l.name) })
		if o.syscalls {
			d.loads = slices.DeleteFunc(d.loads, func(l dataLoadArgs) bool { return l.name != shortLoad })
		}
		if len(d.loads) == 0 {
			continue
		}
		if most := append(slices.Clone(d.layout.cores), 0); slices.Max(most) > runtime.NumCPU() {
			fmt.Fprintf(out, "\n%s and so on: not measured, as this machine has not as many\n", d.loads[0].name)
			continue
		}
		if err := r.measure(ctx, out, n, d, o); err != nil {
			return err
		}
	}
	fmt.Fprint(out, r.summary())
	return errors.Join(o.write(r), r.verdict())
}

// measure measures the systems in turn, so that the machine's moods are shared out among them.
func (r *dataReport) measure(ctx context.Context, out io.Writer, n *network, d dataLoads, o *dataOptions) error {
	all, err := d.layout.systems(n, o)
	if err != nil {
		return err
	}
	if r.Environment.Versions == nil {
		r.Environment = environmentOf(all)
		fmt.Fprint(out, r.heading())
	}
	all = o.present(all)
	for _, s := range all {
		if err := s.await(ctx, n, func(string) error { return s.probeAll() }); err != nil {
			return err
		}
		defer s.stop()
	}
	if o.syscalls {
		return r.countSyscalls(ctx, out, n, all, o)
	}
	for _, load := range d.loads {
		for round := range o.rounds {
			progress("%s: round %d of %d", load.name, round+1, o.rounds)
			for _, s := range all {
				sample, err := s.measureData(ctx, n, load, o)
				if err != nil {
					return err
				}
				r.add(load.name, s, sample)
			}
		}
		fmt.Fprint(out, r.tables(load.name))
	}
	return nil
}

// reusePorts lets connections be made at any rate: each leaves its port in TIME_WAIT for a minute.
func reusePorts() error {
	return errors.Join(os.WriteFile("/proc/sys/net/ipv4/tcp_tw_reuse", []byte("1"), 0),
		os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("10000 60999"), 0))
}

func (s *system) probeAll() error {
	for _, address := range s.addresses {
		if err := probeTCP(address); err != nil {
			return fmt.Errorf("%s: %w", address, err)
		}
	}
	return nil
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

func (s *system) measureData(ctx context.Context, n *network, load dataLoadArgs, o *dataOptions) (*dataSample, error) {
	if strings.Contains(load.args, "--idle") && s.command != nil { // what the loads before have left is not the connections'
		s.stop()
		if err := s.await(ctx, n, probeTCP); err != nil {
			return nil, err
		}
	}
	if err := forgetFlows(); err != nil { // those of short connections stay for minutes, and a full table drops new ones
		return nil, err
	}
	pids, err := s.pids()
	if err != nil {
		return nil, err
	}
	if strings.Contains(load.args, "--idle") {
		if err := rest(ctx, pids); err != nil {
			return nil, s.explain(err)
		}
	}
	before, err := countSockets(pids)
	if err != nil {
		return nil, err
	}
	sample := &dataSample{}
	if err := ask(ctx, n.client, sample, s.dataLoad(load.args, o, pids)...); err != nil {
		return nil, s.explain(err)
	}
	// Its connections end now, which is not to be counted with the next system.
	return sample, poll(ctx, 10*time.Second, func() error {
		if after, err := countSockets(pids); err != nil || after > before+64 {
			return errors.Join(err, fmt.Errorf("%s: connections do not end: %d sockets, before there were %d", s.name, after, before))
		}
		return nil
	})
}

// rest waits until processes that have just started hold what they did half a second ago: what they need to begin with is
// not the connections'.
func rest(ctx context.Context, pids []int) error {
	const step = 500 * time.Millisecond
	last, seen := footprint{}, time.Time{}
	return poll(ctx, 20*time.Second, func() error {
		if time.Since(seen) < step {
			return errors.New("does not come to rest")
		}
		now, err := footprintOf(pids)
		if err != nil {
			return err
		}
		same := now.FDs == last.FDs && now.Resident <= last.Resident+64<<10
		if last, seen = now, time.Now(); !same {
			return fmt.Errorf("does not come to rest: %+v", now)
		}
		return nil
	})
}

// dataLoad is the command line of the clients.
func (s *system) dataLoad(args string, o *dataOptions, pids []int) []string {
	line := append([]string{"data-load", "--for", o.duration().String()}, strings.Fields(args)...)
	if len(pids) > 0 {
		line = append(line, "--pids", pidList(pids))
	}
	return append(line, s.addresses...)
}
