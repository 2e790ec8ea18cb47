package kube

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"

	"redial/config"
)

//lint:file-ignore SA1019 v1.Endpoints is deprecated for writers; a proxy has to go on reading it.

// Where endpoints come from.
const (
	// EndpointsAuto is EndpointSlices, or Endpoints where the API server has no discovery.k8s.io/v1.
	EndpointsAuto = "auto"
	// EndpointsSlices is discovery.k8s.io/v1 EndpointSlices.
	EndpointsSlices = "endpointslices"
	// EndpointsLegacy is core/v1 Endpoints, which know neither serving nor terminating endpoints, nor topology hints.
	EndpointsLegacy = "endpoints"
)

// addEndpoints makes both feeds. Only one of them is run, and both are one resource to wait for.
func (s *Source) addEndpoints() {
	t, client := s.cfg.Tracker, s.cfg.Client
	r := s.progress.add("endpoints")
	s.endpointsResource = r
	st := func(set func(any) error, remove func(config.ServiceName)) *store {
		return &store{set: set, remove: remove, hold: t.Hold, delivered: t.EndpointsDelivered, resource: r,
			uids: map[config.ServiceName]types.UID{}}
	}
	s.slicesFeed = s.newFeed(r, &discoveryv1.EndpointSlice{},
		st(setter(t.SetSlice), func(n config.ServiceName) { t.DeleteSlice(n.Namespace, n.Name) }),
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.DiscoveryV1().EndpointSlices("").List(ctx, o)
		},
		func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.DiscoveryV1().EndpointSlices("").Watch(ctx, o)
		})
	s.endpointsFeed = s.newFeed(r, &v1.Endpoints{}, st(setter(t.SetEndpoints), t.DeleteEndpoints),
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.CoreV1().Endpoints("").List(ctx, o)
		},
		func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.CoreV1().Endpoints("").Watch(ctx, o)
		})
	// Those of Services for other proxies come as well, though the controllers copy that label too: a Service that is handed
	// over to us has its endpoints at once, not when the controllers have caught up.
	labels := "!" + v1.IsHeadlessService
	s.slicesFeed.labels, s.endpointsFeed.labels = labels, labels
}

func (s *Source) followEndpoints(ctx context.Context) {
	source := s.cfg.EndpointSource
	if source == "" || source == EndpointsAuto {
		s.cfg.limits.until(ctx, func() bool {
			var err error
			if source, err = s.discover(ctx); err != nil {
				if ctx.Err() == nil {
					s.endpointsResource.failed("discover", err)
				}
				return false
			}
			return true
		})
		if ctx.Err() != nil {
			return
		}
	}
	f, name := s.slicesFeed, "endpointslices"
	if source == EndpointsLegacy {
		f, name = s.endpointsFeed, "endpoints"
	}
	s.endpointsResource.rename(name)
	f.log = s.cfg.Log.WithField("resource", name)
	s.mu.Lock()
	s.endpointSource = source
	s.mu.Unlock()
	f.log.Info("endpoints come from this resource")
	f.run(ctx)
}

// discover says which source the API server has. Only an API server that knows the core group and does not know the other
// lacks slices: anything else that answers 404 is no API server yet, or none at all.
func (s *Source) discover(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.limits.list)
	defer cancel()
	d := discovery.ToDiscoveryInterfaceWithContext(s.cfg.Client.Discovery())
	// First, or a server that starts in between would be one without slices. client-go hides a 404 for the core group; what
	// it cannot make up is a resource.
	core, err := d.ServerResourcesForGroupVersionWithContext(ctx, v1.SchemeGroupVersion.String())
	if err == nil {
		_, err = d.ServerResourcesForGroupVersionWithContext(ctx, discoveryv1.SchemeGroupVersion.String())
	}
	switch {
	case err == nil, apierrors.IsForbidden(err):
		// Who may not ask may still be allowed to list, and nearly every cluster has slices.
		return EndpointsSlices, nil
	case apierrors.IsNotFound(err) && len(core.APIResources) == 0:
		return "", fmt.Errorf("neither v1 nor discovery.k8s.io/v1 is there, is this the URL of an API server: %w", err)
	case apierrors.IsNotFound(err):
		return EndpointsLegacy, nil
	}
	return "", err
}
