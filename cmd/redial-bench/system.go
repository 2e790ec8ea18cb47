package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// idleTimeout is what the proxies are told: short, so that their way back to rest can be watched.
const idleTimeout = 2 * time.Second

// system is one way to serve the backend's port.
type system struct {
	name    string
	version string
	address string // where clients send to
	// addresses are all of them, where there are several; the one above is the first then.
	addresses []string
	cores     int    // how many processors it may use; 0: as many as there are
	absent    string // why it cannot be measured; empty if it can
	command   func() *exec.Cmd
	workers   bool // the work is done by the process's children

	running *exec.Cmd // nil for the kernel, and while stopped
	log     string
}

func newSystem(name string, addresses []string) *system {
	return &system{name: name, address: addresses[0], addresses: addresses}
}

// start starts the system's process, if it has one.
func (s *system) start(n *network) error {
	if s.command == nil || s.running != nil {
		return nil
	}
	s.log = filepath.Join(n.dir, s.name+".log")
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := s.command()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := n.node.Start(cmd); err != nil {
		return fmt.Errorf("starting %s: %w", s.name, err)
	}
	s.running = cmd
	return nil
}

// stop ends the process and waits for it.
func (s *system) stop() {
	if s.running == nil {
		return
	}
	s.running.Process.Signal(unix.SIGTERM)
	kill := time.AfterFunc(5*time.Second, func() { s.running.Process.Kill() })
	s.running.Wait()
	kill.Stop()
	s.running = nil
}

// pids are the processes whose use is counted.
func (s *system) pids() ([]int, error) {
	if s.running == nil {
		return nil, nil
	}
	if s.workers {
		return family(s.running.Process.Pid)
	}
	return []int{s.running.Process.Pid}, nil
}

// explain adds what the process logged to an error.
func (s *system) explain(err error) error {
	if err == nil || s.log == "" {
		return err
	}
	b, _ := os.ReadFile(s.log)
	return fmt.Errorf("%w\nlog of %s:\n%s", err, s.name, b[max(0, len(b)-4096):])
}

// forgetFlows empties the node's connection tracking: its entries outlive a burst, and its size is limited.
func forgetFlows() error {
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		return fmt.Errorf("emptying connection tracking: %w", err)
	}
	return nil
}

// fileLimit is the hard limit of open files: what redial raises its own to, and so nginx's as well.
func fileLimit() uint64 {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 1024
	}
	return min(lim.Max, 1<<20)
}

// redial is the program itself, with one Service.
func redial(n *network, path, protocol string, backends ...string) (*system, error) {
	return redialServing(n, "redial", path, protocol, []string{clusterIP}, backends)
}

// redialServing is the program with a Service of each address.
func redialServing(n *network, name, path, protocol string, addresses, backends []string) (*system, error) {
	s := newSystem(name, withPort(addresses, servicePort))
	version, err := exec.Command(path, "version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s version: %w (--redial names the program to measure)", path, err)
	}
	s.version = strings.TrimSpace(string(version))
	manifests, err := writeManifests(n, name, protocol, addresses, backends)
	s.command = func() *exec.Cmd {
		return exec.Command(path, "--manifests", manifests, "--admin-socket", filepath.Join(n.dir, "admin.sock"),
			"--udp-timeout", idleTimeout.String(), "--drain-timeout", "0s")
	}
	return s, err
}

// writeManifests returns the folder of Services of these addresses, which all have the same backends.
func writeManifests(n *network, name, protocol string, addresses, backends []string) (folder string, err error) {
	folder = filepath.Join(n.dir, "manifests of "+name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	var b strings.Builder
	for i, address := range addresses {
		b.WriteString(manifest(fmt.Sprintf("echo-%d", i), address, protocol, backends))
	}
	return folder, os.WriteFile(filepath.Join(folder, "echo.yaml"), []byte(b.String()), 0o644)
}

func manifest(name, address, protocol string, backends []string) string {
	protocol = strings.ToUpper(protocol)
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: default}
spec:
  clusterIP: %[2]s
  ports: [{name: echo, protocol: %[3]s, port: %[4]d}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s, namespace: default, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: echo, protocol: %[3]s, port: %[5]d}]
endpoints: [{addresses: [%[6]s]}]
---
`, name, address, protocol, servicePort, backendPort, strings.Join(backends, "]}, {addresses: ["))
}

// await starts a system and waits until a request is answered.
func (s *system) await(ctx context.Context, n *network, request func(address string) error) error {
	if err := s.start(n); err != nil {
		return err
	}
	err := poll(ctx, 15*time.Second, func() error { return n.client.Do(func() error { return request(s.address) }) })
	if err != nil {
		return s.explain(fmt.Errorf("%s does not serve %s: %w", s.name, s.address, err))
	}
	return nil
}
