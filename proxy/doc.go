// Package proxy turns what a cluster asks for into listeners, balancers and steering, and keeps them so.
//
// A [Proxier] follows a config.Tracker. A change of endpoints swaps the immutable view of the balancers concerned and,
// where the usable set became empty or stopped being so, closes or opens a socket: no rule is written, unless clients
// should begin or stop to be dropped (below). A change of a
// Service asks for a sync: the wanted frontends are planned by a pure function, missing ones are opened, the
// Interceptor steers exactly these in one write per family, and only then is closed what is not wanted any more. What
// goes wrong with one Service becomes a problem in its status and is tried again; the others do not notice. Between
// changes, the Interceptor is asked every few seconds whether its rules are still there.
//
//	p := proxy.New(proxy.Config{Tracker: t, Interceptor: i, Relay: r, Ports: ports, Log: log})
//	err := p.Run(ctx) // until ctx ends; rules and connections stay
//
// A frontend is one listening socket per Service port, family and pool of endpoints, or one per VIP of these, with a balancer
// of its own. Its proxy port stays the same as long as its name does, across changes of the Service and restarts of the process.
//
// A large cluster has more Service ports than a node has proxy ports, or descriptors for listeners. Frontends of TCP that come
// when these are used up share listeners (sharing.go): who is meant follows from the address that the client has dialled.
// Nothing else about them differs, but that their clients are refused by a rule, and so not before it is written; until then,
// and with it for as long as it takes when they have a backend again, clients are reset or refused. A back end that redirects
// nothing, and has the proxy listen on the VIPs themselves, may have the kernel look up the listener of those VIPs for which
// there are no descriptors ([intercept.Sharer]). Where that is not possible, and with UDP, a frontend that cannot listen is a
// problem of its Service.
//
// Which frontend a client comes to is decided by rules, since for UDP nothing else tells how it came in. Traffic policies
// Cluster need the frontend of the cluster's endpoints only. An internal policy Local sends the ClusterIP to the
// frontend of the node's own endpoints. An external policy Local does so with NodePort, load balancer IPs and externalIPs,
// except for clients on the node itself, who get what Cluster would give. Where only other nodes have usable endpoints,
// the frontend of this node's drops, by rule; where nobody has any, every frontend refuses. The two frontends of a port
// share nothing: session affinity holds for each by itself, so that a client that uses both a ClusterIP and a NodePort
// may have two backends.
//
// Two goroutines: one takes changes and hands out health checks, the other syncs. They share the frontends under one mutex, which is never held
// while rules are written, so that a stuck iptables lock does not delay endpoints. The data path takes neither.
package proxy
