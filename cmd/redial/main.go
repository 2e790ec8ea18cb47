// Command redial is a userspace L4 proxy for Kubernetes Services. See the README, or redial --help.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	// From the first signal on, the next one has its default effect: it ends the process at once.
	context.AfterFunc(ctx, stop)
	if err := rootCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "redial: "+err.Error())
		os.Exit(1)
	}
}
