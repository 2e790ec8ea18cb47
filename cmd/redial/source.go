package main

import (
	"context"
	"errors"
	"os"

	"github.com/sirupsen/logrus"

	"redial/config"
	"redial/config/manifest"
)

// serviceSource feeds a tracker with Services and endpoints.
type serviceSource interface {
	// Run blocks until ctx ends. An error is one that it cannot go on with.
	Run(ctx context.Context) error
	// Problems are those of the source itself; those of Services are in the tracker.
	Problems() []manifest.Problem
}

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
		return manifest.New(opts.manifests, tracker, log), nil
	}
	return nil, errors.New("reading Services from the Kubernetes API is not part of this build: give --manifests DIR")
}
