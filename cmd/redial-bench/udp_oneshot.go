package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"
)

// One-shot clients use these source ports of each of the client's addresses, so that no port comes twice.
const (
	firstSourcePort = 10_000
	sourcePorts     = 50_000
)

// oneShotResult is what became of the clients.
type oneShotResult struct {
	Clients int           `json:"clients"`
	Took    time.Duration `json:"took"` // nanoseconds, all together
	Faults  udpFaults     `json:"faults"`
}

// udpOneShotCommand is the load generator of clients that make one request each.
func udpOneShotCommand() *cobra.Command {
	var count, first int
	cmd := &cobra.Command{
		Use:    "udp-one-shot ADDRESS",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			remote, err := netip.ParseAddrPort(args[0])
			if err != nil {
				return err
			}
			quietly()
			start := time.Now()
			result := oneShotResult{Clients: count}
			for i := range count {
				local := netip.AddrPortFrom(netip.MustParseAddr(clientAddress((first+i)/sourcePorts)),
					uint16(firstSourcePort+(first+i)%sourcePorts))
				faults, err := exchange(local, remote, uint64(first+i))
				if err != nil {
					return fmt.Errorf("client %s: %w", local, err)
				}
				result.Faults = result.Faults.add(faults)
			}
			result.Took = time.Since(start)
			return json.NewEncoder(os.Stdout).Encode(result)
		},
	}
	cmd.Flags().IntVar(&count, "clients", 1, "how many")
	cmd.Flags().IntVar(&first, "first", 0, "number of the first, which its address follows from")
	return cmd
}

// burst is one wave of one-shot clients and what the proxy held meanwhile.
type burst struct {
	oneShotResult
	Before footprint     `json:"before"`
	During footprint     `json:"during"` // most
	After  footprint     `json:"after"`
	CPU    time.Duration `json:"cpu"`  // of the proxy until it is at rest, nanoseconds
	Rest   time.Duration `json:"rest"` // from the last client to as few descriptors as before
}

// restTime is how long, beyond the idle timeout, a proxy may take to come back to as few descriptors as before.
const restTime = 5 * time.Second

func (b *burst) returned() bool { return b.After.FDs <= b.Before.FDs }

// measureBurst sends clients to a running system.
func measureBurst(ctx context.Context, n *network, s *system, clients, first int) (*burst, error) {
	pids, err := s.pids()
	if err != nil {
		return nil, err
	}
	if err := forgetFlows(); err != nil {
		return nil, err
	}
	b := &burst{}
	if b.Before, err = footprintOf(pids); err != nil {
		return nil, err
	}
	cpu, err := cpuTime(pids)
	if err != nil {
		return nil, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watched := make(chan error, 1)
	go func() { watched <- b.watch(watching, pids) }()
	err = ask(ctx, n.client, &b.oneShotResult, "udp-one-shot", s.address, "--clients", fmt.Sprint(clients), "--first", fmt.Sprint(first))
	stop()
	if watchErr := <-watched; err == nil {
		err = watchErr
	}
	if err != nil {
		return nil, s.explain(err)
	}
	end := time.Now()
	err = poll(ctx, idleTimeout+restTime, func() (err error) {
		if b.After, err = footprintOf(pids); err == nil && !b.returned() {
			err = fmt.Errorf("%d descriptors, before %d", b.After.FDs, b.Before.FDs)
		}
		return err
	})
	b.Rest = time.Since(end)
	if err != nil && b.returned() {
		return nil, s.explain(err) // nothing to read any more; descriptors that are left are for the table
	}
	used, err := cpuTime(pids)
	if err != nil {
		return nil, err
	}
	b.CPU = used - cpu
	// Memory follows later than descriptors.
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(restTime):
	}
	b.After, err = footprintOf(pids)
	return b, err
}

// watch keeps the most that the processes hold until ctx ends.
func (b *burst) watch(ctx context.Context, pids []int) error {
	for {
		now, err := footprintOf(pids)
		if err != nil {
			return err
		}
		b.During = b.During.max(now)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}
