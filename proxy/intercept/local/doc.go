// Package local steers without netfilter, for kernels that have no NAT: the virtual addresses become addresses of this
// node, and the proxy listens on them itself. It is an [intercept.Interceptor].
//
// # How
//
// All it writes are routes of the kernel's table "local", where a route of type local makes an address or a whole range
// one of this host without its being configured anywhere (AnyIP):
//
//	local 10.96.0.0/12 dev lo proto 214 metric 1024 src 192.0.2.7    one for each known Service CIDR
//	local 203.0.113.5  dev lo proto 214 metric 1024 src 192.0.2.7    one for each VIP outside of them
//
// A VIP that the node has by itself, as an address or by somebody else's route, gets none. Compared with /32 addresses
// on a dummy device or on lo, routes need no such device, appear in no list of addresses that an agent could take for the
// node's own (kubelet, BGP daemons), are never picked as a source address, need no duplicate address detection, and carry
// a protocol number, by which exactly ours are found again: by a later process, and by Cleanup.
//
// The metric is worse than that of the kernel's own entries (0), so an address that the node gets later wins, and theirs
// and ours are told apart when either goes. src is what the node's own clients connect from: without it the kernel would
// have them come from the VIP itself (ip_route_output_key_hash_rcu, ip6_route_get_saddr). It follows the node's addresses: the one of
// the default route's interface first. When an address goes, the kernel may remove the IPv4 routes with it as src
// (fib_sync_down_addr) and clears it in IPv6 ones (rt6_remove_prefsrc), and the node's own clients are cut off: Verify
// notices both, and [Routes.Watch] tells when to call it.
//
// # Sharing listeners
//
// A listener for each VIP takes a file descriptor for each. The proxy has VIPs of TCP for which there are none share a few
// sockets ([Routes.Share]), where the kernel can do that (Linux 5.9, CAP_BPF and CAP_NET_ADMIN): a BPF program of the type
// sk_lookup, which the kernel runs for this network namespace when it looks for who listens, finds the VIP in a map and
// chooses the socket. What is not in the map is left to the kernel, so that nobody else notices. The sockets are bound to the
// loopback address, where nobody comes to them otherwise; connections have the VIP as their own address, as with a listener of
// its own. The map changes in one step for each VIP. Program and map belong to the process, and end with it.
//
// The program comes before the kernel's own choice. So VIPs that share do so whoever else listens on their port at all
// addresses of the node, and even at the VIP itself; and while there is no endpoint, their clients are refused rather than left
// to somebody else. NodePorts and UDP have listeners of their own.
//
// Without such a kernel, all this is left out, with a line in the log, and the Services beyond the limit have a problem.
//
// # What it does not do
//
// Clients of a VIP are all alike, since the packet's source plays no part: VIPs with source ranges, and NodePorts that
// are restricted to some addresses, are refused with a [intercept.BindingError] rather than left open. What a traffic
// policy Local drops is refused here, and the node's own clients have no way around that policy. [Routes.Limits] says so.
//
// A listener on the VIP is a socket like any other. Where another process listens on the same port of all addresses
// (an ingress on 0.0.0.0:80), the Service cannot have it: binding fails with EADDRINUSE, and the others work. Its VIP then
// is not local, unless by a Service CIDR or another port, which leads its clients to that process. Ports below 1024 take
// CAP_NET_BIND_SERVICE. The reverse
// is true of ports that no Service has: what the node listens on at all its addresses (sshd on 0.0.0.0:22) answers at
// every VIP as well, as with kube-proxy's IPVS mode. Restrict that by a firewall, if there is one, or by listening on the
// node's own address. Connections to a VIP that is removed get no packet any more.
//
// # ARP
//
// Linux answers ARP requests for any address that is local, on whatever interface, unless arp_ignore forbids it
// (arp_process). In a network that several nodes share, all of them would claim the address. So an IPv4 VIP that lies in
// the network of one of the node's interfaces is refused unless arp_ignore is at least 1 there, which limits answers to
// the addresses of the interface itself; where that is set, set arp_announce to 2 as well, as IPVS asks for. Service CIDRs
// that are given are taken at their word. IPv6 is not concerned: neighbours are told only of an interface's own addresses
// (ndisc_recv_ns). rp_filter looks at sources and does not mind. No sysctl is ever set here.
//
// A VIP takes the whole address: a Service whose externalIP is another host's would cut this node off from it. Addresses
// of gateways are refused for that reason; otherwise it is the business of who may set externalIPs
// (--disable-external-ips).
//
// # Usage
//
//	routes, err := local.New(local.Config{ServiceCIDRs: cidrs, Log: log}) // needs CAP_NET_ADMIN
//	relay.New(relay.Config{ListenControl: local.ListenControl(mark), ...})
//	err = routes.Prepare(ctx, vips)   // VIPs are local now
//	...                               // listen on routes.BindAddr(vip, 0)
//	err = routes.Share(addr, fd)      // or share a listener on addr = routes.BindAddr(vip, port), and bind to that
//	err = routes.Commit(ctx, state)   // those that are gone are no longer
//	go routes.Watch(ctx, look)        // look has Verify called
//
// Calls are not concurrent, as the contract says; only [Routes.Stats] and [Routes.Watch] may be called at any time.
package local
