// Package kube follows the Kubernetes API and hands what it says to a [config.Tracker]: Services, EndpointSlices (or
// Endpoints, where the API has no slices) and the Node that is served. The ranges that ClusterIPs are from it hands to whoever
// asks for them.
//
//	client, err := kube.Client(kube.ClientConfig{})
//	t := config.NewTracker(config.Options{Node: config.Node{Name: "node-1"}})
//	src := kube.New(kube.Config{Client: client, Tracker: t, NodeName: "node-1", Log: log})
//	go src.Run(ctx)
//	<-t.Changed()
//
// Objects go from the wire to the Tracker in the goroutine that reads the watch, and nothing is kept of them but names:
// there is no informer cache, no queue and no handler that could lag behind. So "delivered" needs no proof. When a list has
// been handed over, all of it has been (unlike an informer's HasSynced, kubernetes/kubernetes#126468), and an object whose
// deletion was missed is one that the next list does not have.
//
// An API server that is absent, refuses, hangs or goes silent changes nothing that is known: the source tries again for
// ever, says so once per outage, and [Source.Status] tells what it is waiting for. HTTP/2 pings, which client-go sends
// unless the environment disables them, find a dead connection; a silence longer than the API server's bookmarks allow
// ends the watch also where something in between answers the pings.
//
// Lists are streamed (KEP-3157) where the server can, and fetched where it cannot; the environment variable
// KUBE_FEATURE_WatchListClient=false turns streaming off. The rights needed are those of the ClusterRole
// system:node-proxier.
package kube
