// Package server serves HTTP where others than people ask: kubelets, load balancers and Prometheus.
//
// A [Server] binds one address, and tries again for as long as it cannot: the port may belong to the process that this
// one replaces, and a proxy that gives up because nobody can ask how it is would be worse than one that nobody can ask.
// [HTTP] is the http.Server that all of them use, with bounds on slow clients. What is answered is the caller's business.
//
//	s := server.New(server.Config{Name: "health", Addr: "0.0.0.0:10256", Handler: h, Log: log})
//	err := s.Run(ctx) // until ctx ends
package server
