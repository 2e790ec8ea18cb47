// Package config is the vocabulary of what a cluster asks of a Service proxy.
//
// A source (a directory of manifests, the Kubernetes API) hands v1 objects to a [Tracker]. The Tracker translates each
// object into plain values ([Service], [ServicePort], [Endpoint]), merges the EndpointSlices of one Service, drops
// updates that change nothing, and, once Services and endpoints have both been delivered, hands out [Changes]: the
// whole new value of every Service that differs from what was handed out last. The values say what the API means for
// every node alike: traffic policies, source ranges, topology hints. What it means for this one ([Node], which the Tracker
// passes on) is decided by the pure function [Usable]: which endpoints may take traffic of which kind.
//
// What the API has no field for, the owner of a Service asks for by annotations that begin with redial/. They become
// [Settings], and weights of endpoints.
//
//	t := config.NewTracker(config.Options{})
//	t.SetService(svc)
//	t.SetSlice(slice)
//	t.ServicesDelivered()
//	t.EndpointsDelivered()
//	<-t.Changed()
//	changes := t.Take() // config.Changes{{default web}: *config.Service}
//	addrs := config.Usable(changes[web].Ports[0].Endpoints, config.IPv4, config.ClusterPool, t.Node())
//
// Values handed out are shared and never modified afterwards. A Tracker may be used by several goroutines. Nothing here
// touches the network or the kernel, and only this package and the sources below it know Kubernetes types.
package config
