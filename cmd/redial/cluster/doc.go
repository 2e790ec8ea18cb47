// Package cluster is a Kubernetes cluster to try the proxy in: a real control plane (etcd, kube-apiserver,
// kube-controller-manager), and nodes, pods and clients that are network namespaces on one machine. redial, or another
// Service proxy, runs on each node as a real process, with no more rights than the API grants kube-proxy.
//
// Only the kubelet and the scheduler are played: a Pod becomes a namespace with a small program in it, its status follows
// the program's life, and its deletion ends the program and then removes the object. So Services, EndpointSlices,
// Deployments, rolling updates and terminating endpoints are the real controllers' work.
//
//	lan, err := lab.NewNode()               // in a process prepared by lab.Isolate
//	c, err := cluster.Start(ctx, lan, cluster.Config{Dir: dir, Binaries: binaries, Proxy: "redial", Pod: "pod"})
//	defer c.Stop()
//	node, err := c.AddNode(ctx, cluster.NodeConfig{Name: "node1", Zone: "a"})
//	err = node.StartProxy()
//	...
//	name, err := cluster.Client{Host: node.Host}.Ask("tcp", vip, "hostname")
//
// Everything ends with the process that holds the cluster, since it is the init of its own PID namespace. All methods may
// be called concurrently unless they say otherwise.
package cluster
