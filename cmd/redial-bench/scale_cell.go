package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// scaleCell is one system with so many Services, in a network of its own.
type scaleCell struct {
	System   string
	Services int
	// Adds, Changes and Connections are how many are measured; Idle and Churn how long.
	Adds, Changes, Connections int
	Idle, Churn                time.Duration
	Redial, KubeProxy          string
	Args                       []string // of redial
	LocalPorts                 string   // that the kernel gives to connections of the node; "": as it is
}

// churnRate is how many endpoint changes there are in a second.
const churnRate = 100

// scaleSample is what was measured in a cell. Durations are nanoseconds.
type scaleSample struct {
	Start phases `json:"start"`
	// Added is how long Services took from the API server until their clients were answered, Changed how long endpoints did
	// until new connections went to the new ones.
	Added   []time.Duration `json:"added"`
	Changed []time.Duration `json:"changed"`
	// Restores is how often rules were written for the changes.
	Restores int `json:"restores"`
	// Connect and Whole are short connections to the last Service, sorted.
	Connect []time.Duration `json:"-"`
	Whole   []time.Duration `json:"-"`
	// ConnectP50 and so on sum them up.
	ConnectP50 time.Duration `json:"connectP50"`
	ConnectP99 time.Duration `json:"connectP99"`
	WholeP50   time.Duration `json:"wholeP50"`
	WholeP99   time.Duration `json:"wholeP99"`
	Idle       use           `json:"idle"`
	Churn      use           `json:"churn"`
	// ChurnChanged are changes as in Changed, while others were changed.
	ChurnChanged  []time.Duration `json:"churnChanged"`
	ChurnUpdates  int             `json:"churnUpdates"`
	ChurnRestores int             `json:"churnRestores"`
	Peak          int64           `json:"peak"` // bytes resident, at most
	FDs           int             `json:"fds"`
}

// phases are what became of a cold start.
type phases struct {
	// Total is from the start of the process until the last Service answers.
	Total time.Duration `json:"total"`
	// Delivered is until the source has delivered all, Own what redial did then, Restore and Read how long it waited for
	// iptables-restore and iptables-save. 0: it did not say.
	Delivered time.Duration `json:"delivered"`
	Own       time.Duration `json:"own"`
	Restore   time.Duration `json:"restore"`
	Read      time.Duration `json:"read"`
}

// use is what a process used for a while.
type use struct {
	CPU      float64 `json:"cpu"`      // of one processor, programs that it ran included
	Resident int64   `json:"resident"` // bytes, in the end
}

func scaleCellCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "scale-cell JSON",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := &scaleCell{}
			if err := json.Unmarshal([]byte(args[0]), c); err != nil {
				return err
			}
			s, err := c.measure(cmd.Context())
			if err != nil {
				return fmt.Errorf("%s, %d Services: %w", c.System, c.Services, err)
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(s)
		},
	}
}

func (c *scaleCell) measure(ctx context.Context) (*scaleSample, error) {
	raiseFileLimit()
	n, err := newNetwork()
	if err != nil {
		return nil, fmt.Errorf("making the network: %w", err)
	}
	if err := c.prepare(n); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(scaleSystems, func(s struct {
		name string
		make func(*network, *scaleCell) (*subject, error)
	}) bool {
		return s.name == c.System
	})
	if i < 0 {
		return nil, errors.New("there is no such system")
	}
	s, err := scaleSystems[i].make(n, c)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	sample := &scaleSample{}
	// All clients are of this thread.
	err = n.client.Do(func() error {
		for _, step := range []func(context.Context, *subject, *scaleSample) error{
			c.coldStart, c.connections, c.idle, c.adds, c.changes, c.churn,
		} {
			if err := step(ctx, s, sample); err != nil {
				return err
			}
		}
		return nil
	})
	return sample, s.explain(err)
}

// prepare makes all of endpointRange answer, and what has no VIP yet be lost.
func (c *scaleCell) prepare(n *network) error {
	endpoints, services := prefixOf(endpointRange), prefixOf(serviceRange)
	err := n.backend.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: endpoints, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST})
	})
	if err == nil {
		err = netlink.RouteAdd(&netlink.Route{Dst: endpoints, Gw: net.ParseIP(backendIP)})
	}
	if err == nil {
		err = netlink.RouteAdd(&netlink.Route{Dst: services, Type: unix.RTN_BLACKHOLE})
	}
	if err != nil {
		return fmt.Errorf("routing: %w", err)
	}
	if err := n.client.Do(reusePorts); err != nil {
		return err
	}
	if c.LocalPorts != "" {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte(c.LocalPorts), 0); err != nil {
			return err
		}
	}
	return n.backend.Start(peer("scale-peer"))
}

func prefixOf(s string) *net.IPNet {
	p := netip.MustParsePrefix(s)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// last is the Service that is looked at: where one is after the other, all others come first.
func (c *scaleCell) last() int { return c.Services - 1 }

const (
	// probePatience is how long the first packet of a probe may take before another one is sent.
	probePatience = 2 * time.Millisecond
	startPatience = 2 * time.Minute
	stepPatience  = time.Minute
)

// until asks a Service until the answer is as it should be, and returns how long that took since start.
func until(ctx context.Context, start time.Time, atMost time.Duration, service, generation int) (time.Duration, error) {
	want := endpointsOf(service, generation)[0].Port()
	for {
		a, err := shortConnection(vipOf(service), probePatience)
		took := time.Since(start)
		switch {
		case err == nil && a.port == want:
			return took, nil
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case took > atMost && err == nil:
			return 0, fmt.Errorf("the Service %d still goes to its old endpoints after %s", service, atMost)
		case took > atMost:
			return 0, fmt.Errorf("the Service %d is not served after %s: %w", service, atMost, err)
		}
	}
}

func (c *scaleCell) coldStart(ctx context.Context, s *subject, sample *scaleSample) error {
	start := time.Now()
	if err := apart(s.begin); err != nil {
		return err
	}
	total, err := until(ctx, start, startPatience, c.last(), 0)
	if err != nil {
		return err
	}
	sample.Start.Total = total
	if s.command == nil || c.Redial == "" {
		return nil
	}
	return sample.Start.read(ctx, start)
}

// read asks redial for its part. Its sync ends somewhat later than clients are answered: it looks at what it has written.
func (p *phases) read(ctx context.Context, start time.Time) error {
	var m samples
	err := poll(ctx, stepPatience, func() (err error) {
		if m, err = scrape(ctx); err != nil {
			return err
		}
		if m.sum("kubeproxy_sync_proxy_rules_last_timestamp_seconds") == 0 && m.sum("redial_source_delivered_timestamp_seconds") != 0 {
			return errors.New("the first sync does not end")
		}
		return nil
	})
	if err != nil || m.sum("redial_source_delivered_timestamp_seconds") == 0 {
		return err // which is nil for another program
	}
	at := func(seconds float64) time.Duration {
		return time.Unix(0, int64(seconds*1e9)).Sub(start)
	}
	p.Delivered = at(m.sum("redial_source_delivered_timestamp_seconds"))
	p.Restore = time.Duration(m.sum("redial_rule_programs_seconds_total", "restore") * 1e9)
	p.Read = time.Duration(m.sum("redial_rule_programs_seconds_total", "save") * 1e9)
	p.Own = at(m.sum("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "IPv4")) - p.Delivered - p.Restore - p.Read
	return nil
}

// connections measures short connections, one after the other.
func (c *scaleCell) connections(ctx context.Context, _ *subject, sample *scaleSample) error {
	for i := range c.Connections + c.Connections/5 {
		a, err := shortConnection(vipOf(c.last()), time.Second)
		if err != nil {
			return err
		}
		if i >= c.Connections/5 {
			sample.Connect, sample.Whole = append(sample.Connect, a.connect), append(sample.Whole, a.whole)
		}
	}
	slices.Sort(sample.Connect)
	slices.Sort(sample.Whole)
	sample.ConnectP50, sample.ConnectP99 = percentile(sample.Connect, 50), percentile(sample.Connect, 99)
	sample.WholeP50, sample.WholeP99 = percentile(sample.Whole, 50), percentile(sample.Whole, 99)
	return ctx.Err()
}

// idle measures what it takes to do nothing.
func (c *scaleCell) idle(ctx context.Context, s *subject, sample *scaleSample) error {
	if s.running == nil {
		return nil
	}
	if err := idle(ctx, settling); err != nil {
		return err
	}
	var err error
	sample.Idle, err = useWhile(ctx, s, func() error { return idle(ctx, c.Idle) })
	return err
}

// settling is how long a system may clear up after its start before it counts as idle.
const settling = 10 * time.Second

func idle(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// useWhile measures what the system's process uses while do runs.
func useWhile(ctx context.Context, s *subject, do func() error) (u use, err error) {
	pid := s.running.Process.Pid
	before, err := cpuWithChildren(pid)
	if err != nil {
		return u, err
	}
	start := time.Now()
	if err := do(); err != nil {
		return u, err
	}
	took := time.Since(start)
	after, err := cpuWithChildren(pid)
	if err != nil {
		return u, err
	}
	f, err := footprintOf([]int{pid})
	if err != nil {
		return u, err
	}
	return use{CPU: (after - before).Seconds() / took.Seconds(), Resident: f.Resident}, ctx.Err()
}

// between is what keeps changes apart that are to be measured each for itself: more than redial waits between two writes.
const between = 300 * time.Millisecond

func (c *scaleCell) adds(ctx context.Context, s *subject, sample *scaleSample) error {
	for i := range c.Adds {
		if err := idle(ctx, between); err != nil {
			return err
		}
		start := time.Now()
		if err := apart(func() error { return s.add(c.Services + i) }); err != nil {
			return err
		}
		took, err := until(ctx, start, stepPatience, c.Services+i, 0)
		if err != nil {
			return err
		}
		sample.Added = append(sample.Added, took)
	}
	return nil
}

func (c *scaleCell) changes(ctx context.Context, s *subject, sample *scaleSample) error {
	if err := idle(ctx, 2*between); err != nil { // what an added Service has begun is over
		return err
	}
	before, err := restores(ctx, s)
	if err != nil {
		return err
	}
	for i := range c.Changes {
		if err := idle(ctx, between/10); err != nil {
			return err
		}
		took, err := c.changeLast(ctx, s, i+1)
		if err != nil {
			return err
		}
		sample.Changed = append(sample.Changed, took)
	}
	after, err := restores(ctx, s)
	sample.Restores = after - before
	return err
}

func (c *scaleCell) changeLast(ctx context.Context, s *subject, generation int) (time.Duration, error) {
	start := time.Now()
	if err := apart(func() error { return s.change(c.last(), generation) }); err != nil {
		return 0, err
	}
	return until(ctx, start, stepPatience, c.last(), generation)
}

// churn changes endpoints of other Services all the time.
func (c *scaleCell) churn(ctx context.Context, s *subject, sample *scaleSample) error {
	if s.running == nil || !s.churns || c.Churn == 0 {
		return nil
	}
	before, err := restores(ctx, s)
	if err != nil {
		return err
	}
	stop, done := make(chan struct{}), make(chan error)
	go func() { done <- c.changeOthers(s, stop, &sample.ChurnUpdates) }()
	sample.Churn, err = useWhile(ctx, s, func() error {
		for i, start := c.Changes, time.Now(); time.Since(start) < c.Churn; i++ {
			took, err := c.changeLast(ctx, s, i+1)
			if err != nil {
				return err
			}
			sample.ChurnChanged = append(sample.ChurnChanged, took)
			if err := idle(ctx, 20*time.Millisecond); err != nil {
				return err
			}
		}
		return nil
	})
	close(stop)
	if err := errors.Join(err, <-done); err != nil {
		return err
	}
	after, err := restores(ctx, s)
	if err != nil {
		return err
	}
	sample.ChurnRestores = after - before
	pid := s.running.Process.Pid
	if sample.Peak, err = peakOf(pid); err != nil {
		return err
	}
	sample.FDs, err = countFDs(pid)
	return err
}

// changeOthers changes endpoints of Services that are not looked at.
func (c *scaleCell) changeOthers(s *subject, stop <-chan struct{}, updates *int) error {
	tick := time.NewTicker(time.Second / churnRate)
	defer tick.Stop()
	generations := make([]int, c.Services+c.Adds)
	if len(generations) < 2 {
		return nil
	}
	for {
		select {
		case <-stop:
			return nil
		case <-tick.C:
		}
		i := rand.IntN(len(generations))
		if i == c.last() {
			i++
			if i == len(generations) {
				i = 0
			}
		}
		generations[i]++
		if err := s.change(i, generations[i]); err != nil {
			return err
		}
		*updates++
	}
}

// restores is how often the system has written rules with iptables-restore.
func restores(ctx context.Context, s *subject) (int, error) {
	if s.running == nil {
		return 0, nil
	}
	m, err := scrape(ctx)
	return int(m.sum("redial_rule_restores_total")), err
}
