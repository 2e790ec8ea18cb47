package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"redial/config"
	"redial/proxy/admin"
	"redial/proxy/intercept/lab"
)

const (
	clusterIP = "198.18.0.10:80"
	nodePort  = "198.18.64.1:30080" // the node's address on the client's link
	dnsIP     = "198.18.0.10:53"
	dnatIP    = "198.18.0.20:80"
	dnatDNS   = "198.18.0.20:53"
)

var backendNames = []string{"a", "b", "c"}

// stage is the node, its backends and its client. The processes end with the demo's own, which is their init.
type stage struct {
	node, client *lab.Host
	hosts        []*lab.Host
	backends     []*exec.Cmd
	dir          string
	socket       string
}

func newStage() (*stage, error) {
	s := &stage{}
	var err error
	if s.node, err = lab.NewNode(); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("/run", "redial-demo"); err != nil { // /run is the namespace's own
		return nil, err
	}
	s.socket = filepath.Join(s.dir, "admin.sock")
	for i, name := range backendNames {
		host, err := s.node.AddHost(name, fmt.Sprintf("198.18.%d.2/24", i+1))
		if err != nil {
			return nil, err
		}
		s.hosts = append(s.hosts, host)
		s.backends = append(s.backends, nil)
		if err := s.serve(i); err != nil {
			return nil, err
		}
	}
	if s.client, err = s.node.AddHost("client", "198.18.64.2/24"); err != nil {
		return nil, err
	}
	if err := s.client.AddAddress("eth0", "198.18.64.3/24"); err != nil {
		return nil, err
	}
	if err := s.startDNAT(); err != nil {
		return nil, err
	}
	return s, s.startRedial()
}

// serve starts a backend's process.
func (s *stage) serve(i int) error {
	cmd := exec.Command("/proc/self/exe", "demo", "backend", backendNames[i], s.address(i))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // Ctrl-C is for the demo only, which then ends the rest
	s.backends[i] = cmd
	return s.hosts[i].Start(cmd)
}

func (s *stage) address(i int) string { return fmt.Sprintf("198.18.%d.2:8080", i+1) }

func (s *stage) kill(i int) error {
	if err := s.backends[i].Process.Kill(); err != nil {
		return err
	}
	s.backends[i].Wait()
	return nil
}

func (s *stage) silence(i int) error {
	_, err := s.hosts[i].Output("iptables", "-I", "INPUT", "-p", "tcp", "-j", "DROP")
	return err
}

func (s *stage) unsilence(i int) error {
	_, err := s.hosts[i].Output("iptables", "-D", "INPUT", "-p", "tcp", "-j", "DROP")
	return err
}

// startDNAT writes what kube-proxy would: each backend with an equal chance.
func (s *stage) startDNAT() error {
	for protocol, to := range map[string]string{"tcp": dnatIP, "udp": dnatDNS} {
		vip, port, _ := net.SplitHostPort(to)
		for i := range backendNames {
			rule := []string{"-t", "nat", "-A", "PREROUTING", "-d", vip, "-p", protocol, "--dport", port}
			if left := len(backendNames) - i; left > 1 {
				rule = append(rule, "-m", "statistic", "--mode", "random", "--probability", fmt.Sprint(1/float64(left)))
			}
			rule = append(rule, "-j", "DNAT", "--to-destination", s.address(i))
			if _, err := s.node.Output("iptables", rule...); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *stage) startRedial() error {
	manifests := filepath.Join(s.dir, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(manifests, "web.yaml"), []byte(s.manifest()), 0o644); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", "--manifests", manifests, "--admin-socket", s.socket)
	cmd.Stderr = log
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	return s.node.Start(cmd)
}

func (s *stage) manifest() string {
	var b strings.Builder
	b.WriteString(`apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: NodePort
  clusterIP: 198.18.0.10
  ports:
  - {name: http, port: 80, nodePort: 30080}
  - {name: dns, port: 53, protocol: UDP}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: dns, port: 8080, protocol: UDP}]
endpoints:
`)
	for i := range backendNames {
		host, _, _ := net.SplitHostPort(s.address(i))
		fmt.Fprintf(&b, "- addresses: [%s]\n", host)
	}
	return b.String()
}

// waitServed waits until a request gets through by each of the three ways.
func (s *stage) waitServed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, target := range targets {
		for {
			_, err := target.ask(s.client, target.address)
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s: %w", target.address, err)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}

// retried asks redial how many connections needed a second backend.
func (s *stage) retried(ctx context.Context) (uint64, error) {
	var st status
	if err := admin.Get(ctx, s.socket, &st); err != nil {
		return 0, err
	}
	var n uint64
	for _, svc := range st.Services {
		for _, p := range svc.Ports {
			for _, f := range p.Fronts {
				if p.Protocol == config.TCP {
					n += f.Stats.Retried
				}
			}
		}
	}
	return n, nil
}

func (s *stage) redialLog() string {
	b, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (s *stage) close() { os.RemoveAll(s.dir) }

// demoBackendCommand is a server that answers with its name: by HTTP, and, on the UDP port of the same number, each
// datagram.
func demoBackendCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "backend NAME ADDRESS",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			server := &http.Server{Addr: args[1], Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				io.WriteString(w, args[0])
			})}
			names, err := net.ListenPacket("udp", args[1])
			if err != nil {
				return err
			}
			go answerNames(names, args[0])
			context.AfterFunc(cmd.Context(), func() { server.Close() })
			return server.ListenAndServe()
		},
	}
}

func answerNames(conn net.PacketConn, name string) {
	for buf := make([]byte, 1500); ; {
		_, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		conn.WriteTo([]byte(name), from)
	}
}
