package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redial/proxy/intercept/lab"
)

// NodeConfig is what a node is made of.
type NodeConfig struct {
	Name string
	Zone string // empty: the node is in no zone
	// Reserved keeps away all pods but those whose node selector names the node.
	Reserved bool
}

// Node is a host with a Node object, pods, and a Service proxy once StartProxy was called.
type Node struct {
	Name  string
	Host  *lab.Host
	Addrs []netip.Addr // IPv4, IPv6: those of its Node object

	c        *Cluster
	pods     []netip.Prefix // networks of its pods, IPv4 and IPv6
	reserved bool

	mu       sync.Mutex
	used     uint8 // pods ever, and so the last byte of the youngest's address
	proxy    *process
	stopped  bool // the proxy was ended on purpose
	assigned map[string]int
}

// AddNode adds a node with addresses of both families. Nothing proxies on it yet.
func (c *Cluster) AddNode(ctx context.Context, config NodeConfig) (*Node, error) {
	host, err := lab.NewHost(config.Name)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.hosts++
	i := c.hosts
	c.mu.Unlock()
	n := &Node{
		Name: config.Name,
		Host: host,
		Addrs: []netip.Addr{
			netip.AddrFrom4([4]byte{198, 18, 0, 10 + i}),
			nth("2001:db8:1::/64", 10+i),
		},
		pods: []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, 64 + i, 0}), 24),
			netip.MustParsePrefix(fmt.Sprintf("2001:db8:64:%x::/64", i)),
		},
		c:        c,
		reserved: config.Reserved,
		assigned: map[string]int{},
	}
	if err := attachNode(c.lan, host, n.Addrs, n.pods); err != nil {
		return nil, fmt.Errorf("attaching node %s: %w", n.Name, err)
	}
	if err := n.register(ctx, config.Zone); err != nil {
		return nil, fmt.Errorf("registering node %s: %w", n.Name, err)
	}
	c.mu.Lock()
	c.nodes = append(c.nodes, n)
	c.mu.Unlock()
	return n, nil
}

// register makes the Node object, as a kubelet does of its own node.
func (n *Node) register(ctx context.Context, zone string) error {
	object := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{v1.LabelHostname: n.Name}}}
	if zone != "" {
		object.Labels[v1.LabelTopologyZone] = zone
	}
	for _, p := range n.pods {
		object.Spec.PodCIDRs = append(object.Spec.PodCIDRs, p.String())
	}
	object.Spec.PodCIDR = object.Spec.PodCIDRs[0]
	object, err := n.c.Client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	object.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeHostName, Address: n.Name}}
	for _, a := range n.Addrs {
		object.Status.Addresses = append(object.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a.String()})
	}
	object.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
	_, err = n.c.Client.CoreV1().Nodes().UpdateStatus(ctx, object, metav1.UpdateOptions{})
	return err
}

// nextAddrs are the addresses of one more pod.
func (n *Node) nextAddrs() ([]netip.Addr, uint8, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.used == 254 {
		return nil, 0, fmt.Errorf("node %s has no more addresses for pods", n.Name)
	}
	n.used++
	return []netip.Addr{nth(n.pods[0].String(), n.used), nth(n.pods[1].String(), n.used)}, n.used, nil
}

// StartProxy starts the node's Service proxy, with more flags than the cluster's. It returns once the process runs, which
// is before it serves.
func (n *Node) StartProxy(flags ...string) error {
	config, err := n.c.control.creds.kubeconfig(proxyUser)
	if err != nil {
		return err
	}
	path := n.c.config.Proxy
	args := []string{path, "--kubeconfig", config, "--hostname-override", n.Name, "--cluster-cidr", ClusterCIDRs}
	if n.IsRedial() {
		args = append(args, "--admin-socket", n.AdminSocket())
	}
	args = append(append(args, n.c.config.ProxyFlags...), flags...)
	p, err := startProcess(n.Host, n.c.config.Dir, n.Name+"-proxy", args...)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.proxy, n.stopped = p, false
	return nil
}

// IsRedial says whether the node's proxy is redial, and not another that redial is compared to.
func (n *Node) IsRedial() bool { return filepath.Base(n.c.config.Proxy) == "redial" }

// AdminSocket is the path of redial's admin socket on this node.
func (n *Node) AdminSocket() string { return filepath.Join(n.c.config.Dir, n.Name+".sock") }

func (n *Node) running() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proxy
}

// StopProxy asks the proxy to end, and returns when it has. Its rules may stay.
func (n *Node) StopProxy() { n.endProxy(func(p *process) { p.stop(20 * time.Second) }) }

// KillProxy ends the proxy without giving it a chance to notice.
func (n *Node) KillProxy() { n.endProxy((*process).kill) }

func (n *Node) endProxy(end func(*process)) {
	n.mu.Lock()
	p := n.proxy
	n.stopped = true
	n.mu.Unlock()
	if p != nil {
		end(p)
	}
}

// ProxyLog returns the end of the proxy's log, of all its runs.
func (n *Node) ProxyLog(lines int) string {
	p := n.running()
	if p == nil {
		return ""
	}
	return p.tail(lines)
}

func (n *Node) failed() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proxy == nil || n.stopped || !n.proxy.ended() {
		return nil
	}
	return fmt.Errorf("the proxy of %s has ended: %v\n%s", n.Name, n.proxy.err, n.proxy.tail(30))
}
