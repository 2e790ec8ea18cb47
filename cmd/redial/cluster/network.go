package cluster

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"redial/proxy/intercept/lab"
)

// The addresses of the cluster. What is external (load balancer and external IPs) the LAN sends to the first node, unless
// a test routes it elsewhere.
const (
	apiAddr    = "198.18.0.1"
	apiPort    = "6443"
	apiAddress = apiAddr + ":" + apiPort

	lanBridge = "lan0"
	// ClusterCIDRs are the pods' networks.
	ClusterCIDRs  = "198.18.64.0/18,2001:db8:64::/48"
	serviceCIDRs  = "198.19.0.0/17,2001:db8:5::/112"
	externalCIDR4 = "198.19.128.0/17"
	externalCIDR6 = "2001:db8:6::/112"
)

// uplinkMAC is the hardware address of the node's end of every pod's veth pair, so that all have the same link-local
// address, which is the pods' IPv6 gateway. They need no other: this is how Calico wires pods.
var (
	uplinkMAC = net.HardwareAddr{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}
	// lanMAC is the LAN's own. Left to itself, a bridge takes the least of its ports' addresses, and all its neighbours lose
	// it for a while when a node is added.
	lanMAC       = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}
	uplinkAddr6  = netip.MustParseAddr("fe80::ecee:eeff:feee:eeee")
	lanAddr4     = netip.MustParseAddr(apiAddr)
	lanAddr6     = netip.MustParseAddr("2001:db8:1::1")
	outsideAddrs = []string{"198.18.3.2/24", "2001:db8:3::2/64"}
)

// layLAN makes the bridge that nodes are attached to, and a client behind it that belongs to no node.
func layLAN(lan *lab.Host) (outside *lab.Host, err error) {
	err = lan.Do(func() error {
		snooping := false // neighbour discovery must not wait for a querier
		bridge := &netlink.Bridge{
			LinkAttrs:         netlink.LinkAttrs{Name: lanBridge, HardwareAddr: lanMAC},
			MulticastSnooping: &snooping,
		}
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("adding the bridge: %w", err)
		}
		for _, a := range []netip.Addr{lanAddr4, lanAddr6} {
			if err := lan.AddAddress(lanBridge, netip.PrefixFrom(a, lanBits(a)).String()); err != nil {
				return err
			}
		}
		return linkUp(lanBridge)
	})
	if err != nil {
		return nil, err
	}
	if err := answerAll(lan); err != nil {
		return nil, err
	}
	if err := prohibitServices(lan); err != nil {
		return nil, err
	}
	return lan.AddHost("outside", outsideAddrs...)
}

// answerAll lifts the limit on how often a host tells another that it refuses or cannot deliver: one a second is a lot
// in a network, but nothing for tests that run side by side.
func answerAll(host *lab.Host) error {
	for _, key := range []string{"ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"} {
		if err := host.Sysctl(key, "0"); err != nil {
			return err
		}
	}
	return nil
}

// prohibitServices lets what no node's proxy took fail at once, instead of wandering. By rules, since the kernel limits the
// answers of unreachable routes for all namespaces at once (net.ipv4.route.error_cost). And as prohibited, since the kernel
// takes a host to be unreachable only for now, and tells no UDP socket of it (icmp_err_convert). The external addresses do
// lead to a node, but nothing comes back.
func prohibitServices(lan *lab.Host) error {
	for i, iptables := range []string{"iptables", "ip6tables"} {
		service, external := prefixes(serviceCIDRs)[i].String(), []string{externalCIDR4, externalCIDR6}[i]
		reject := []string{"-j", "REJECT", "--reject-with", []string{"icmp-admin-prohibited", "icmp6-adm-prohibited"}[i]}
		for _, match := range [][]string{{"-d", service}, {"-i", lanBridge, "-d", external}} {
			if _, err := lan.Output(iptables, append(append([]string{"-w", "-A", "FORWARD"}, match...), reject...)...); err != nil {
				return err
			}
		}
	}
	return nil
}

func lanBits(a netip.Addr) int {
	if a.Is4() {
		return 24
	}
	return 64
}

// attachNode joins a node to the LAN and lets it forward for its pods.
func attachNode(lan, host *lab.Host, addrs []netip.Addr, pods []netip.Prefix) error {
	uplink := "to-" + host.Name
	if err := lan.Join(uplink, host, "eth0", nil); err != nil {
		return err
	}
	if err := answerAll(host); err != nil {
		return err
	}
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := host.Sysctl(key, "1"); err != nil {
			return err
		}
	}
	for _, a := range addrs {
		if err := host.AddAddress("eth0", netip.PrefixFrom(a, lanBits(a)).String()); err != nil {
			return err
		}
	}
	if _, err := lan.Output("ip", "link", "set", uplink, "master", lanBridge); err != nil {
		return err
	}
	for _, gateway := range []netip.Addr{lanAddr4, lanAddr6} {
		if err := addRoute(host, netip.Prefix{}, gateway); err != nil {
			return err
		}
	}
	// Conntrack tracks nothing in a namespace until a NAT rule exists; on a node it always does.
	for _, iptables := range []string{"iptables", "ip6tables"} {
		if _, err := host.Output(iptables, "-w", "-t", "nat", "-A", "POSTROUTING", "-m", "mark", "--mark", "0x1/0x1", "-j", "MASQUERADE"); err != nil {
			return err
		}
	}
	for i, p := range pods {
		if err := addRoute(lan, p, addrs[i]); err != nil {
			return err
		}
	}
	return nil
}

// attachPod joins a pod to its node by a veth pair whose node's end has no address.
func attachPod(node *Node, pod *lab.Host, device string, addrs []netip.Addr) error {
	if err := node.Host.Join(device, pod, "eth0", uplinkMAC); err != nil {
		return err
	}
	for _, a := range addrs {
		if err := pod.AddAddress("eth0", netip.PrefixFrom(a, a.BitLen()).String()); err != nil {
			return err
		}
		gateway := uplinkAddr6
		if a.Is4() {
			gateway = node.Addrs[0] // ARP is answered for any of the node's addresses on any of its interfaces
		}
		if _, err := pod.Output("ip", "route", "add", "default", "via", gateway.String(), "dev", "eth0", "onlink"); err != nil {
			return err
		}
		if _, err := node.Host.Output("ip", "route", "add", a.String(), "dev", device); err != nil {
			return err
		}
	}
	return nil
}

// addRoute routes to (the zero Prefix is the default route) via a gateway.
func addRoute(host *lab.Host, to netip.Prefix, gateway netip.Addr) error {
	r := &netlink.Route{Gw: gateway.AsSlice()}
	if to.IsValid() {
		r.Dst = &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}
	}
	err := host.Do(func() error { return netlink.RouteReplace(r) })
	if err != nil {
		return fmt.Errorf("route on %s to %s via %s: %w", host.Name, to, gateway, err)
	}
	return nil
}

func linkUp(device string) error {
	link, err := netlink.LinkByName(device)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("setting %s up: %w", device, err)
	}
	return nil
}
