package main

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"redial/cmd/redial-bench/apiserver"
)

// subject is one way to serve many Services.
type subject struct {
	*system
	// begin has what is there at the start served: it starts the process, or writes the rules.
	begin func() error
	// add adds a Service, change replaces its endpoints by those of another generation.
	add    func(service int) error
	change func(service, generation int) error
	// churns is whether changes may come at any rate.
	churns bool
}

// scaleSystems are the names of those that can be compared, and how they are made.
var scaleSystems = []struct {
	name string
	make func(n *network, c *scaleCell) (*subject, error)
}{
	{"redial (iptables-nft)", func(n *network, c *scaleCell) (*subject, error) { return scaleRedial(n, c, "--iptables-mode", "nft") }},
	{"redial (iptables-legacy)", func(n *network, c *scaleCell) (*subject, error) {
		return scaleRedial(n, c, "--iptables-mode", "legacy")
	}},
	{"redial (local)", func(n *network, c *scaleCell) (*subject, error) {
		return scaleRedial(n, c, "--interception", "local", "--service-cidr", serviceRange)
	}},
	{"linear rules (iptables-nft)", func(n *network, c *scaleCell) (*subject, error) { return linearRules(n, c, "nft") }},
	{"linear rules (iptables-legacy)", func(n *network, c *scaleCell) (*subject, error) { return linearRules(n, c, "legacy") }},
	{"kube-proxy (iptables)", func(n *network, c *scaleCell) (*subject, error) { return scaleKubeProxy(n, c, "iptables") }},
	{"kube-proxy (nftables)", func(n *network, c *scaleCell) (*subject, error) { return scaleKubeProxy(n, c, "nftables") }},
}

// metricsURL is where both proxies have their metrics.
const metricsURL = "http://127.0.0.1:10249/metrics"

func scaleRedial(n *network, c *scaleCell, args ...string) (*subject, error) {
	return followers(n, c, exec.Command(c.Redial, append(append([]string{"--admin-socket", filepath.Join(n.dir, "admin.sock"),
		"--hostname-override", nodeName, "--drain-timeout", "0s"}, args...), c.Args...)...))
}

func scaleKubeProxy(n *network, c *scaleCell, mode string) (*subject, error) {
	return followers(n, c, exec.Command(c.KubeProxy, "--proxy-mode", mode, "--hostname-override", nodeName, "--cluster-cidr", endpointRange,
		"--conntrack-max-per-core", "0", "--kube-api-content-type", "application/vnd.kubernetes.protobuf"))
}

// followers are processes that follow an API server.
func followers(n *network, c *scaleCell, cmd *exec.Cmd) (*subject, error) {
	api := apiserver.New()
	put := func(objects ...runtime.Object) error {
		for _, o := range objects {
			if err := api.Put(o); err != nil {
				return err
			}
		}
		return nil
	}
	if err := put(nodeObject()); err != nil {
		return nil, err
	}
	for i := range c.Services {
		if err := put(serviceObject(i), sliceObject(i, 0)); err != nil {
			return nil, err
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go http.Serve(listener, api) // ends with the process
	cmd.Args = append(cmd.Args, "--master", "http://"+listener.Addr().String())
	s := &system{name: c.System, command: func() *exec.Cmd { return cmd }}
	return &subject{
		system: s,
		begin:  func() error { return s.start(n) },
		add:    func(service int) error { return put(serviceObject(service), sliceObject(service, 0)) },
		change: func(service, generation int) error { return put(sliceObject(service, generation)) },
		churns: true,
	}, nil
}

// linearRules is the plainest set of rules: one for each Service, one after the other, and a chain for its endpoints.
func linearRules(n *network, c *scaleCell, mode string) (*subject, error) {
	restore := func(rules string) error {
		cmd := exec.Command("iptables-"+mode+"-restore", "--noflush")
		cmd.Stdin = strings.NewReader("*nat\n" + rules + "COMMIT\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", cmd, err, out)
		}
		return nil
	}
	var chains, heads, tails strings.Builder
	for i := range c.Services {
		fmt.Fprintf(&chains, ":SERVICE-%d - [0:0]\n", i)
		heads.WriteString(linearHead(i))
		tails.WriteString(linearTail(i, 0))
	}
	return &subject{
		system: &system{name: c.System},
		begin: func() error {
			return restore(":LINEAR - [0:0]\n-A PREROUTING -j LINEAR\n" + chains.String() + heads.String() + tails.String())
		},
		add: func(service int) error {
			return restore(fmt.Sprintf(":SERVICE-%d - [0:0]\n", service) + linearHead(service) + linearTail(service, 0))
		},
		change: func(service, generation int) error {
			return restore(fmt.Sprintf(":SERVICE-%d - [0:0]\n", service) + linearTail(service, generation))
		},
	}, nil
}

func linearHead(service int) string {
	return fmt.Sprintf("-A LINEAR -d %s/32 -p tcp -m tcp --dport %d -j SERVICE-%d\n", vipOf(service).Addr(), scalePort, service)
}

func linearTail(service, generation int) string {
	var b strings.Builder
	for i, e := range endpointsOf(service, generation) {
		chance := ""
		if left := endpointCount - i; left > 1 {
			chance = fmt.Sprintf("-m statistic --mode random --probability %.10f ", 1/float64(left))
		}
		fmt.Fprintf(&b, "-A SERVICE-%d -p tcp %s-j DNAT --to-destination %s\n", service, chance, e)
	}
	return b.String()
}
