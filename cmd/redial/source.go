package main

import (
	"context"
	"errors"
	"os"
	"sync"

	"github.com/sirupsen/logrus"

	"redial/config"
	"redial/config/kube"
	"redial/config/manifest"
)

// serviceSource feeds a tracker with Services and endpoints.
type serviceSource interface {
	// Run blocks until ctx ends. An error is one that it cannot go on with.
	Run(ctx context.Context) error
	// Problems are those of the source itself; those of Services are in the tracker.
	Problems() []manifest.Problem
	// Following is how far it has got with the Kubernetes API; nil if it is something else.
	Following() *kube.Status
	// Report tells the owner of a Service about one of its problems, as far as there is a way. It does not block.
	Report(config.ServiceName, config.Problem)
}

// directory is a directory of manifests.
type directory struct{ *manifest.Source }

func (directory) Following() *kube.Status                   { return nil }
func (directory) Report(config.ServiceName, config.Problem) {}

// cluster is the Kubernetes API.
type cluster struct {
	source *kube.Source
	events *kube.Events
}

func newCluster(opts *options, tracker *config.Tracker, log *logrus.Entry) (*cluster, error) {
	if err := kube.RouteKlog(log); err != nil {
		return nil, err
	}
	api := kube.ClientConfig{
		Kubeconfig: opts.kubeconfig, Master: opts.master, ContentType: opts.apiContentType,
		QPS: opts.apiQPS, Burst: int(opts.apiBurst), UserAgent: "redial/" + version,
	}
	client, err := kube.Client(api)
	if err != nil {
		return nil, err
	}
	// A second one: events must not use up what the watches may ask.
	reporting, err := kube.Client(api)
	if err != nil {
		return nil, err
	}
	c := &cluster{source: kube.New(kube.Config{
		Client: client, Tracker: tracker, NodeName: opts.nodeName,
		ServiceProxyName: opts.serviceProxyName, EndpointSource: opts.endpointSource, Log: log,
	})}
	c.events = kube.NewEvents(kube.EventsConfig{Client: reporting, NodeName: opts.nodeName, UID: c.source.UID, Log: log})
	return c, nil
}

// Run implements serviceSource.
func (c *cluster) Run(ctx context.Context) error {
	var reporting sync.WaitGroup
	reporting.Go(func() { _ = c.events.Run(ctx) }) // which is always nil
	defer reporting.Wait()
	return c.source.Run(ctx)
}

func (c *cluster) Problems() []manifest.Problem { return nil }

func (c *cluster) Following() *kube.Status {
	s := c.source.Status()
	return &s
}

func (c *cluster) Report(name config.ServiceName, p config.Problem) { c.events.Report(name, p) }

// serviceAccount is where Pods find their credentials.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// checkSource says what to do if there is nowhere to read Services.
func (o *options) checkSource() error {
	if o.manifests != "" || o.kubeconfig != "" || o.master != "" {
		return nil
	}
	if _, err := os.Stat(serviceAccount); err == nil && os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return nil
	}
	return errors.New("no source of Services: give --manifests DIR for a directory of manifests; or --kubeconfig FILE or --master URL " +
		"(or a file with clientConnection.kubeconfig, as --config) for a cluster; or run as a Pod with a service account, which needs neither (see redial --help)")
}

func newSource(opts *options, tracker *config.Tracker, log *logrus.Entry) (serviceSource, error) {
	if opts.manifests != "" {
		return directory{manifest.New(opts.manifests, tracker, log)}, nil
	}
	return newCluster(opts, tracker, log)
}
