package main

import (
	"errors"
	"io"
	"log"
	"net"
	"sync"
	"time"

	"github.com/spf13/cobra"
)

// plainProxyCommand is what one would write first: a goroutine per connection, io.Copy both ways. It is the yardstick for what more
// than that is worth.
func plainProxyCommand() *cobra.Command {
	var listen, backends []string
	cmd := &cobra.Command{
		Use:    "plain-proxy",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			failed := make(chan error)
			for _, address := range listen {
				listener, err := net.Listen("tcp4", address)
				if err != nil {
					return err
				}
				go func() { failed <- servePlainly(listener, backends) }()
			}
			return <-failed
		},
	}
	cmd.Flags().StringSliceVar(&listen, "listen", nil, "addresses")
	cmd.Flags().StringSliceVar(&backends, "backends", nil, "addresses, taken in turn")
	return cmd
}

func servePlainly(listener net.Listener, backends []string) error {
	for turn := 0; ; {
		client, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil { // no descriptor is free
			log.Print(err)
			time.Sleep(5 * time.Millisecond)
			continue
		}
		backend := backends[turn%len(backends)]
		turn++
		go relayPlainly(client.(*net.TCPConn), backend)
	}
}

func relayPlainly(client *net.TCPConn, address string) {
	defer client.Close()
	conn, err := net.Dial("tcp4", address)
	if err != nil {
		log.Print(err)
		return
	}
	defer conn.Close()
	backend := conn.(*net.TCPConn)
	var both sync.WaitGroup
	both.Go(func() { copyPlainly(backend, client) })
	both.Go(func() { copyPlainly(client, backend) })
	both.Wait()
}

func copyPlainly(to, from *net.TCPConn) {
	io.Copy(to, from)
	to.CloseWrite()
}
