package main

import (
	"net/netip"
	"os"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
)

// nodeOptions describe the node: which of its addresses count, and which clients are on it.
type nodeOptions struct {
	hostnameOverride   string
	bindAddress        string
	nodePortAddresses  []string // CIDRs, and the words primary, localhost and all; empty: all
	localhostNodePorts bool
	clusterCIDR        string
	detectLocalMode    string
	podBridge          string
	podInterfacePrefix string

	// What they come to.
	nodeName string     // empty with manifests, unless it is given: then no endpoint is local
	nodeIP   netip.Addr // the primary one, from bindAddress; the zero value: what the API says
	// localPods tell the pods of this node. All zero means that they cannot be told.
	localPods struct {
		prefixes   []netip.Prefix
		nodeCIDR   bool     // those of the Node object
		interfaces []string // as in rules: one that ends in "+" stands for all that begin like this
	}
}

const (
	localByClusterCIDR     = "ClusterCIDR"
	localByNodeCIDR        = "NodeCIDR"
	localByBridge          = "BridgeInterface"
	localByInterfacePrefix = "InterfaceNamePrefix"
)

func defaultNodeOptions() nodeOptions {
	return nodeOptions{bindAddress: "0.0.0.0", localhostNodePorts: true}
}

func (o *nodeOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.hostnameOverride, "hostname-override", o.hostnameOverride, "name of this node's Node object; also --node-name (default: the hostname, and none with --manifests)")
	f.StringVar(&o.bindAddress, "bind-address", o.bindAddress, "the node's primary address, where it is not the first one in its Node object; nothing is bound to it")
	f.StringSliceVar(&o.nodePortAddresses, "nodeport-addresses", o.nodePortAddresses, "the node's addresses that NodePorts are open at: CIDRs, and the words primary (the node's own), localhost and all (default all)")
	f.BoolVar(&o.localhostNodePorts, "iptables-localhost-nodeports", o.localhostNodePorts, "NodePorts are open at loopback addresses, both IPv4 and IPv6")
	f.StringVar(&o.detectLocalMode, "detect-local-mode", o.detectLocalMode, "how clients are known to be pods of this node: ClusterCIDR (the default), NodeCIDR, BridgeInterface or InterfaceNamePrefix")
	f.StringVar(&o.clusterCIDR, "cluster-cidr", o.clusterCIDR, "ranges of the pods' addresses, separated by a comma, for ClusterCIDR")
	f.StringVar(&o.podBridge, "pod-bridge-interface", o.podBridge, "the bridge that pods are connected to, for BridgeInterface")
	f.StringVar(&o.podInterfacePrefix, "pod-interface-name-prefix", o.podInterfacePrefix, "what the names of pods' interfaces begin with, for InterfaceNamePrefix")
}

func (o *options) validateNode(c *complaints) {
	o.nodeName = strings.ToLower(strings.TrimSpace(o.hostnameOverride))
	if o.hostnameOverride != "" && o.nodeName == "" {
		c.add("--hostname-override %q: is empty", o.hostnameOverride)
	}
	if o.nodeName == "" && o.cluster() {
		name, err := os.Hostname()
		if err != nil {
			c.add("finding the node's name: %w: give --hostname-override", err)
		}
		o.nodeName = strings.ToLower(strings.TrimSpace(name))
	}

	o.nodeIP = netip.Addr{}
	if o.bindAddress == "" { // a variable of a unit or a Pod without value; kube-proxy keeps its default then
		o.bindAddress = defaultNodeOptions().bindAddress
	}
	switch a, err := netip.ParseAddr(o.bindAddress); {
	case err != nil:
		c.add("--bind-address %q: want an IP address, 0.0.0.0 for the one of the Node object", o.bindAddress)
	case a.IsLoopback():
		c.add("--bind-address %s: is the node's own address as others know it, and that cannot be a loopback address; leave it out for the one of the Node object", a)
	case a.IsMulticast():
		c.add("--bind-address %s: is a multicast address", a)
	case !a.IsUnspecified():
		o.nodeIP = a.Unmap()
	}

	for _, s := range o.nodePortAddresses {
		switch s {
		case "primary", "localhost", "all":
		default:
			if _, err := netip.ParsePrefix(s); err != nil {
				c.add("--nodeport-addresses %q: want a CIDR such as 198.18.0.0/15, or one of primary, localhost, all", s)
			}
		}
	}
	o.validateLocalPods(c)
}

func (o *options) validateLocalPods(c *complaints) {
	local := &o.localPods
	local.prefixes, local.nodeCIDR, local.interfaces = nil, false, nil
	var ranges []netip.Prefix
	for _, s := range strings.Split(o.clusterCIDR, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		p, err := netip.ParsePrefix(s)
		if err != nil {
			c.add("--cluster-cidr %q: want CIDRs such as 198.18.0.0/16, separated by commas", s)
			continue
		}
		ranges = append(ranges, p.Masked())
	}
	switch o.detectLocalMode {
	case "", localByClusterCIDR:
		local.prefixes = ranges
		if len(ranges) == 0 && o.detectLocalMode != "" {
			o.note(logrus.WarnLevel, "--detect-local-mode ClusterCIDR needs --cluster-cidr: no client is taken for a pod of this node", nil)
		}
	case localByNodeCIDR:
		local.nodeCIDR = true
	case localByBridge:
		if o.podBridge == "" {
			c.add("--detect-local-mode BridgeInterface: needs --pod-bridge-interface")
			return
		}
		local.interfaces = []string{o.podBridge}
	case localByInterfacePrefix:
		if o.podInterfacePrefix == "" {
			c.add("--detect-local-mode InterfaceNamePrefix: needs --pod-interface-name-prefix")
			return
		}
		local.interfaces = []string{o.podInterfacePrefix + "+"}
	default:
		c.oneOf("detect-local-mode", o.detectLocalMode, localByClusterCIDR, localByNodeCIDR, localByBridge, localByInterfacePrefix)
	}
}
