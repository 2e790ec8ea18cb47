package kube

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// FollowServiceCIDRs has the ranges that ClusterIPs are from followed too: those of all ServiceCIDR objects
// (networking.k8s.io/v1, since Kubernetes 1.33), also while one is being deleted, since addresses of it may still be in
// use. changed gets all of them, sorted, each once, whenever they change; its calls do not overlap. Nothing can be taken
// from the Tracker before they are here, so that changed comes first.
//
// They are a help and no more: where the server does not have them, or does not let us see them, that is said once,
// changed is not called, and nothing else is held up. FollowServiceCIDRs has to be called before Run.
func (s *Source) FollowServiceCIDRs(changed func([]netip.Prefix)) {
	r := &resource{all: s.progress, name: "servicecidrs", optional: true}
	client, release := s.cfg.Client, s.cfg.Tracker.Hold()
	st := &cidrStore{resource: r, changed: changed, delivered: release, known: map[string][]netip.Prefix{},
		log: s.cfg.Log.WithField("resource", r.name)}
	f := s.newFeed(r, &networkingv1.ServiceCIDR{}, st,
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.NetworkingV1().ServiceCIDRs().List(ctx, o)
		},
		func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.NetworkingV1().ServiceCIDRs().Watch(ctx, o)
		})
	s.followServiceCIDRs = func(ctx context.Context) {
		// Whatever becomes of them.
		late := time.AfterFunc(s.cfg.limits.initial, release)
		defer late.Stop()
		if s.awaitServiceCIDRs(ctx, f, release) {
			s.progress.admit(r)
			f.run(ctx)
		}
	}
}

// awaitServiceCIDRs returns true when the server lets ServiceCIDRs be listed, and false when ctx ends. One that does not
// may yet be upgraded, or the role be amended.
func (s *Source) awaitServiceCIDRs(ctx context.Context, f *feed, refused func()) bool {
	said := ""
	for {
		asking, cancel := context.WithTimeout(ctx, s.cfg.limits.list)
		_, err := f.list(asking, metav1.ListOptions{Limit: 1})
		cancel()
		if err == nil {
			return true
		}
		refused()
		why, pause := "the API server cannot be asked", s.cfg.limits.optional/60
		switch {
		case apierrors.IsNotFound(err):
			why, pause = "the API server has none, as before Kubernetes 1.33", s.cfg.limits.optional
		case apierrors.IsForbidden(err):
			why, pause = "they may not be listed, which the ClusterRole system:node-proxier allows since Kubernetes 1.33", s.cfg.limits.optional
		}
		if said != why && ctx.Err() == nil {
			f.log.WithError(err).Infof("no ServiceCIDRs: %s; --service-cidr can name the ranges instead", why)
			said = why
		}
		select {
		case <-time.After(wait.Jitter(pause, 1)):
		case <-ctx.Done():
			return false
		}
	}
}

// cidrStore stands where a reflector expects a cache, for ServiceCIDRs.
type cidrStore struct {
	resource  *resource
	changed   func([]netip.Prefix)
	delivered func() // called after each list
	log       *logrus.Entry

	known map[string][]netip.Prefix // by the object's name
	told  []netip.Prefix
}

// Add implements [cache.ReflectorStore].
func (s *cidrStore) Add(object any) error { return s.Update(object) }

// Update implements [cache.ReflectorStore].
func (s *cidrStore) Update(object any) error {
	if err := s.set(object); err != nil {
		return err
	}
	s.tell(false)
	return nil
}

// Delete implements [cache.ReflectorStore].
func (s *cidrStore) Delete(object any) error {
	o, err := meta.Accessor(object)
	if err != nil {
		return fmt.Errorf("the API server sent a %T instead of an object: %w", object, err)
	}
	delete(s.known, o.GetName())
	s.tell(false)
	return nil
}

// Replace implements [cache.ReflectorStore].
func (s *cidrStore) Replace(objects []any, _ string) error {
	before := s.known
	s.known = make(map[string][]netip.Prefix, len(objects))
	for _, object := range objects {
		if err := s.set(object); err != nil {
			s.known = before
			s.resource.failed("list", err)
			return err
		}
	}
	s.tell(true)
	s.delivered()
	return nil
}

// Resync implements [cache.ReflectorStore].
func (s *cidrStore) Resync() error { return nil }

// Transformer implements [cache.TransformingStore].
func (s *cidrStore) Transformer() cache.TransformFunc { return trim }

func (s *cidrStore) set(object any) error {
	o, ok := object.(*networkingv1.ServiceCIDR)
	if !ok {
		return fmt.Errorf("the API server sent a %T instead of a ServiceCIDR", object)
	}
	var ranges []netip.Prefix
	for _, text := range o.Spec.CIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			s.log.WithField("name", o.Name).WithError(err).Warn("leaving out a range of a ServiceCIDR that is none")
			continue
		}
		ranges = append(ranges, p.Masked())
	}
	s.known[o.Name] = ranges
	return nil
}

// tell hands the ranges on if they have changed; whole means that they come from a list.
func (s *cidrStore) tell(whole bool) {
	s.resource.holds(len(s.known), whole)
	now := []netip.Prefix{}
	for _, ranges := range s.known {
		now = append(now, ranges...)
	}
	slices.SortFunc(now, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	now = slices.Compact(now)
	if s.told != nil && slices.Equal(s.told, now) {
		return
	}
	s.told = now
	s.log.WithField("cidrs", now).Info("ClusterIPs are from these ranges")
	s.changed(now)
}
