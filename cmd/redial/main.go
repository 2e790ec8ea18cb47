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
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, unix.SIGTERM)
	go func() {
		<-signals
		stop()
		// The next one has its default effect, however soon it comes: it ends the process at once.
		second := <-signals
		signal.Reset()
		unix.Kill(os.Getpid(), second.(unix.Signal))
	}()
	if err := rootCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "redial: "+err.Error())
		os.Exit(1)
	}
}
