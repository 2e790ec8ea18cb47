// Package health tells kubelets and load balancers whether this node serves, in kube-proxy's words.
//
// A [Node] answers /healthz and /livez, by default on port 10256. Load balancers with external traffic policy Cluster ask
// /healthz, which is also about the node (KEP-3836): whether it is about to go, or the proxy is. Kubelets ask /livez, which is
// about the proxy alone: a node that is to be removed is no reason to restart it. [Services] opens the healthCheckNodePort
// of each Service of type LoadBalancer with external traffic policy Local, which says whether the node has
// endpoints of that Service.
//
//	node := health.NewNode(health.Config{Proxy: proxier, Leaving: leaving, Timeout: 2 * syncPeriod})
//	go server.New(server.Config{Name: "health", Addr: addr, Handler: node.Handler(), Log: log}).Run(ctx)
//	services := health.NewServices(health.ServicesConfig{Healthy: node.Ready, Log: log})
//	for _, err := range services.Sync(checks) { ... } // one Service's port could not be opened
//	...
//	node.Stop() // draining: not ready any more, but alive
//	services.Close()
//
// The package knows nothing about endpoints, rules and the Kubernetes API: it asks for facts when it is asked. All may be
// called from any goroutine.
package health
