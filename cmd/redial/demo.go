package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"redial/proxy/intercept/lab"
)

func demoCommand() *cobra.Command {
	inside := false
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show redial at work, for 20 seconds, in network namespaces of its own",
		Long: `Builds a node, three HTTP backends and a client in network namespaces, runs redial on the node,
and sends steady traffic to a Service while one backend is killed, one is made silent, and both
come back. The same traffic goes through plain kernel DNAT over the same backends, for
comparison. Nothing outside the namespaces is touched, and nothing is left behind.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !inside {
				return isolated(cmd.Context(), cmd.OutOrStdout(), "demo", "--inside")
			}
			return demo(cmd.Context(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&inside, "inside", false, "already in the namespaces")
	cmd.Flags().MarkHidden("inside")
	cmd.AddCommand(demoBackendCommand())
	return cmd
}

// isolated runs this program again, as the node of a network of its own.
func isolated(ctx context.Context, out io.Writer, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	lab.Isolate(cmd)
	// Ctrl-C is for this process only: it passes the signal on, and a second one would end the demo without its table.
	cmd.SysProcAttr.Setpgid = true
	err = cmd.Run()
	switch exit := (*exec.ExitError)(nil); {
	case errors.Is(err, context.Canceled):
		return nil // interrupted, and ended well
	case errors.As(err, &exit):
		return errors.New("the demo did not go as it should, see above")
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("making namespaces: %w: run it as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)", err)
	}
	return err
}

// act is one step of the script.
type act struct {
	at   time.Duration
	what string
	do   func(*stage) error
	// between: while no request is under way. What a backend has received and not answered ends with it, behind any
	// proxy, and how many requests that hits is chance. The demo is about those that come after.
	between bool
}

var script = []act{
	{0, "all well", func(*stage) error { return nil }, false},
	{4 * time.Second, "backend a is killed", func(s *stage) error { return s.kill(0) }, true},
	{9 * time.Second, "backend b goes silent: its TCP packets are dropped", func(s *stage) error { return s.silence(1) }, true},
	{15 * time.Second, "both come back", func(s *stage) error { return errors.Join(s.serve(0), s.unsilence(1)) }, false},
}

const curtain = 20 * time.Second

func demo(ctx context.Context, out io.Writer) error {
	s, err := newStage()
	if err != nil {
		return fmt.Errorf("setting the demo up: %w", err)
	}
	defer s.close()
	if err := s.waitServed(ctx); err != nil {
		return fmt.Errorf("redial is not serving: %w\n%s", err, s.redialLog())
	}
	fmt.Fprintf(out, "One Service, three backends. From a client on another host, %d new connections a second to each of: redial's\n"+
		"ClusterIP %s, redial's NodePort %s, and %s, which plain kernel DNAT (iptables, a random\n"+
		"backend per connection) spreads over the same backends; and as many UDP queries to %s and %s.\n\n", perSecond, clusterIP, nodePort, dnatIP, dnsIP, dnatDNS)
	t := s.startTraffic(ctx)
	start := time.Now()
	fmt.Fprintln(out, "               redial TCP             redial UDP       kernel DNAT TCP       DNAT UDP")
	fmt.Fprintln(out, "  s   done failed retried  a/b/c     done failed    done failed  a/b/c     done failed")
	next := 0
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for second := 0; time.Since(start) < curtain && ctx.Err() == nil; second++ {
		for next < len(script) && time.Since(start) >= script[next].at {
			fmt.Fprintf(out, "-- %s\n", script[next].what)
			if err := t.perform(script[next]); err != nil {
				return err
			}
			next++
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		t.printSecond(out, second+1)
	}
	t.stop()
	return t.printTotals(out)
}
