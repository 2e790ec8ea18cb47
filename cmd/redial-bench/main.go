// Command redial-bench measures redial beside other ways to serve a Service, all in one run and in network namespaces of
// its own: absolute figures depend on the machine and its mood, so each is only worth something beside the others.
//
//	redial-bench udp
//	redial-bench data
//	redial-bench failover
//	redial-bench scale
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	if err := rootCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "redial-bench: "+err.Error())
		os.Exit(1)
	}
}

func rootCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "redial-bench",
		Short:         "Measure redial beside kernel DNAT, nginx and HAProxy",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.AddCommand(udpCommand(), udpEchoCommand(), udpLoadCommand(), udpOneShotCommand(), dataCommand(), dataPeerCommand(), dataLoadCommand(), plainProxyCommand(),
		failoverCommand(), failoverPeerCommand(), failoverLoadCommand(), scaleCommand(), scaleCellCommand(), scalePeerCommand())
	return cmd
}
