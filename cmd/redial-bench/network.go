package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"redial/proxy/intercept/lab"
)

const (
	clusterIP   = "198.18.0.10" // redial's
	dnatIP      = "198.18.0.20" // the kernel's
	nodeIP      = "198.18.64.1" // the node's address on the client's link, where nginx listens
	clientIP    = "198.18.64.2"
	backendIP   = "198.18.1.2"
	servicePort = 5300
	backendPort = 5301
)

// network is where everything is measured: a client and a backend, joined by a node.
type network struct {
	node, client, backend *lab.Host
	dir                   string // for configuration, gone with the node
	ports, virtual        int    // how many are taken
}

// frontends returns addresses of the node, for listeners, that nobody has yet.
func (n *network) frontends(count int) []string {
	var a []string
	for range count {
		n.ports++
		a = append(a, fmt.Sprintf("%s:%d", nodeIP, servicePort+100+n.ports))
	}
	return a
}

// virtualIPs returns addresses of nobody, for Services.
func (n *network) virtualIPs(count int) []string {
	var a []string
	for range count {
		n.virtual++
		a = append(a, fmt.Sprintf("198.18.%d.%d", 128+n.virtual/256, n.virtual%256))
	}
	return a
}

func withPort(ips []string, port int) []string {
	var a []string
	for _, ip := range ips {
		a = append(a, fmt.Sprintf("%s:%d", ip, port))
	}
	return a
}

// isolated runs this program with the same arguments again, as the node of a network of its own.
func isolated(ctx context.Context) error {
	return isolate(ctx, os.Stdout, append(os.Args[1:], "--inside")...)
}

// isolate runs this program as the node of a network of its own.
func isolate(ctx context.Context, out io.Writer, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	lab.Isolate(cmd)
	err = cmd.Run()
	switch exit := (*exec.ExitError)(nil); {
	case errors.As(err, &exit):
		return errors.New("not everything went as it should, see above")
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("making namespaces: %w: run it as root, or allow user namespaces", err)
	}
	return err
}

func newNetwork() (*network, error) {
	n := &network{}
	var err error
	if n.node, err = lab.NewNode(); err != nil {
		return nil, err
	}
	if n.client, err = n.node.AddHost("client", clientIP+"/24"); err != nil {
		return nil, err
	}
	if n.backend, err = n.node.AddHost("backend", backendIP+"/24"); err != nil {
		return nil, err
	}
	n.dir, err = os.MkdirTemp("/run", "redial-bench") // /run is the namespace's own
	return n, err
}

// addClientAddresses gives the client n addresses in all.
func (n *network) addClientAddresses(count int) error {
	for i := 1; i < count; i++ {
		if err := n.client.AddAddress("eth0", clientAddress(i)+"/24"); err != nil {
			return err
		}
	}
	return nil
}

// clientAddress is the client's i-th address, from 0.
func clientAddress(i int) string { return fmt.Sprintf("198.18.64.%d", 2+i) }

// peer is a subcommand of this program that is to run on another host. It ends with the node's process.
func peer(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // Ctrl-C is for the node only
	return cmd
}

// ask runs a peer to its end and decodes what it prints.
func ask(ctx context.Context, host *lab.Host, answer any, args ...string) error {
	cmd := peer(args...)
	var out strings.Builder
	cmd.Stdout = &out
	if err := host.Start(cmd); err != nil {
		return fmt.Errorf("starting %s on %s: %w", args[0], host.Name, err)
	}
	stop := context.AfterFunc(ctx, func() { cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%s on %s: %w", args[0], host.Name, err))
	}
	return json.Unmarshal([]byte(out.String()), answer)
}

// poll calls f until it reports success, at most for so long.
func poll(ctx context.Context, atMost time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}
