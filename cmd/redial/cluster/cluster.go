package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"redial/proxy/intercept/lab"
)

// Config is what a cluster is made of. All of it is needed, but for ProxyFlags.
type Config struct {
	Dir        string   // for data and logs; it must exist
	Binaries   string   // folder of kube-apiserver and kube-controller-manager
	Proxy      string   // path of the Service proxy: redial, or kube-proxy itself
	ProxyFlags []string // for the proxy of every node
	Pod        string   // path of what runs in pods: redial/cmd/redial/cluster/pod
}

// Cluster is a running control plane with its network, nodes and pods.
type Cluster struct {
	// Client may do everything with the API.
	Client *kubernetes.Clientset
	// Outside is a host that is neither a node nor a pod. The LAN is its gateway.
	Outside *lab.Host

	config  Config
	lan     *lab.Host
	control controlPlane
	ctx     context.Context // of the played kubelet and scheduler, whose starts and ends are not the caller's
	cancel  context.CancelFunc
	kubelet *kubelet
	pods    informers.SharedInformerFactory
	running sync.WaitGroup // workers of pods, and bindings

	mu    sync.Mutex
	nodes []*Node // in the order they were added
	hosts uint8   // nodes ever added
	vips  uint8   // external addresses ever handed out
}

// Start starts the control plane on lan, which [lab.NewNode] made of this process, and returns when the API answers.
// There are no nodes yet.
func Start(ctx context.Context, lan *lab.Host, config Config) (*Cluster, error) {
	outside, err := layLAN(lan)
	if err != nil {
		return nil, fmt.Errorf("laying the LAN: %w", err)
	}
	c := &Cluster{Outside: outside, config: config, lan: lan}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.control = controlPlane{host: lan, dir: config.Dir, binaries: config.Binaries}
	if err := c.control.start(ctx); err != nil {
		c.Stop()
		return nil, fmt.Errorf("starting the control plane: %w", err)
	}
	c.Client = c.control.client
	if err := c.startKubelet(); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// Stop ends everything, proxies first.
func (c *Cluster) Stop() {
	for _, n := range c.Nodes() {
		n.StopProxy()
	}
	c.cancel()
	if c.pods != nil {
		c.pods.Shutdown()
	}
	c.running.Wait()
	c.control.stop()
}

// StopAPI ends the API server. What is in the cluster goes on. Not to be called together with StartAPI.
func (c *Cluster) StopAPI() { c.control.api.kill() }

// StartAPI starts an API server in place of one that StopAPI ended, and returns when it answers.
func (c *Cluster) StartAPI(ctx context.Context) error { return c.control.startAPI(ctx) }

// Failed is the error of a part that has ended though nobody stopped it; nil if all run. Such an end explains any other
// failure.
func (c *Cluster) Failed() error {
	errs := []error{c.control.failed()}
	for _, n := range c.Nodes() {
		errs = append(errs, n.failed())
	}
	return errors.Join(errs...)
}

// Nodes returns the nodes in the order they were added.
func (c *Cluster) Nodes() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*Node(nil), c.nodes...)
}

// node returns the node of a name, or nil.
func (c *Cluster) node(name string) *Node {
	for _, n := range c.Nodes() {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// ExternalAddrs hands out an address of each family that nobody else has, for use as an external or load balancer IP.
// The LAN sends both to via; no host has them.
func (c *Cluster) ExternalAddrs(via *Node) (v4, v6 netip.Addr, err error) {
	c.mu.Lock()
	c.vips++
	n := c.vips
	c.mu.Unlock()
	v4, v6 = nth(externalCIDR4, n), nth(externalCIDR6, n)
	for i, a := range []netip.Addr{v4, v6} {
		if err := addRoute(c.lan, netip.PrefixFrom(a, a.BitLen()), via.Addrs[i]); err != nil {
			return v4, v6, err
		}
	}
	return v4, v6, nil
}

// nth is the address of a network whose last byte is n.
func nth(cidr string, n uint8) netip.Addr {
	bytes := netip.MustParsePrefix(cidr).Addr().AsSlice()
	bytes[len(bytes)-1] = n
	a, _ := netip.AddrFromSlice(bytes)
	return a
}

// prefixes parses a list of networks as flags have it.
func prefixes(list string) []netip.Prefix {
	var all []netip.Prefix
	for s := range strings.SplitSeq(list, ",") {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

// Logs returns the last lines of the proxies' logs, and some of the control plane's.
func (c *Cluster) Logs(lines int) string {
	var b strings.Builder
	tail := func(p *process, lines int) {
		if p != nil {
			fmt.Fprintf(&b, "--- %s (all of it in %s)\n%s", p.name, p.log, p.tail(lines))
		}
	}
	tail(c.control.api, 5)
	tail(c.control.controllers, 5)
	for _, n := range c.Nodes() {
		tail(n.running(), lines)
	}
	return b.String()
}

// podDir makes and returns the folder for the pods' logs.
func (c *Cluster) podDir() (string, error) {
	dir := c.config.Dir + "/pods"
	return dir, os.MkdirAll(dir, 0o755)
}
