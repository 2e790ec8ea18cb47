package kube

import (
	"fmt"
	"sync"
	"unique"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"redial/config"
)

// store stands where a reflector expects a cache. It hands each object to the Tracker and keeps only which there are, to
// tell those that a list no longer has.
type store struct {
	set    func(object any) error
	remove func(config.ServiceName)
	// hold makes a list one change.
	hold func() (release func())
	// delivered is called after each list has been handed over.
	delivered func()
	resource  *resource

	mu sync.Mutex
	// uids of the objects there are; empty unless keepUIDs.
	uids map[config.ServiceName]types.UID
	// keepUIDs: somebody asks for them. Each is as large as what else is known of a small object.
	keepUIDs bool
}

// Add implements [cache.ReflectorStore].
func (s *store) Add(object any) error { return s.Update(object) }

// Update implements [cache.ReflectorStore].
func (s *store) Update(object any) error {
	name, uid, err := s.identify(object)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.uids[name] = uid // first: what is wrong with it is reported with the UID
	n := len(s.uids)
	s.mu.Unlock()
	if err := s.set(object); err != nil {
		return err
	}
	s.resource.holds(n, false)
	return nil
}

// Delete implements [cache.ReflectorStore].
func (s *store) Delete(object any) error {
	name, _, err := s.identify(object)
	if err != nil {
		return err
	}
	s.remove(name)
	s.mu.Lock()
	delete(s.uids, name)
	n := len(s.uids)
	s.mu.Unlock()
	s.resource.holds(n, false)
	return nil
}

// Replace implements [cache.ReflectorStore]: the objects are all there are. Those that were known and are not among them
// have been deleted while nobody watched.
func (s *store) Replace(objects []any, _ string) error {
	release := s.hold()
	defer release()
	uids := make(map[config.ServiceName]types.UID, len(objects))
	for i, object := range objects {
		name, uid, err := s.identify(object)
		if err == nil {
			err = s.set(object)
		}
		if err != nil {
			// Then what is gone cannot be told from what was not understood, and nothing may be taken away.
			s.resource.failed("list", err)
			return err
		}
		uids[name] = uid
		objects[i] = nil // the garbage collector need not wait for the last one
	}
	s.mu.Lock()
	before := s.uids
	s.uids = uids
	s.mu.Unlock()
	for name := range before {
		if _, ok := uids[name]; !ok {
			s.remove(name)
		}
	}
	s.resource.holds(len(uids), true)
	release()
	s.delivered()
	return nil
}

// Resync implements [cache.ReflectorStore]. There is nothing to hand over again.
func (s *store) Resync() error { return nil }

// Transformer implements [cache.TransformingStore]: a list is streamed into memory before it is handed over.
func (s *store) Transformer() cache.TransformFunc { return trim }

func (s *store) uid(name config.ServiceName) types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.uids[name]
}

func (s *store) identify(object any) (name config.ServiceName, uid types.UID, err error) {
	o, err := meta.Accessor(object)
	if err != nil {
		return name, "", fmt.Errorf("the API server sent a %T instead of an object: %w", object, err)
	}
	if s.keepUIDs {
		uid = o.GetUID()
	}
	return config.ServiceName{Namespace: unique.Make(o.GetNamespace()).Value(), Name: o.GetName()}, uid, nil
}

// trim drops what is large and read by nobody, such as the record of who wrote which field and the manifest that kubectl
// keeps: of tens of thousands of objects it would be a multiple of what is read.
func trim(object any) (any, error) {
	if o, ok := object.(metav1.Object); ok {
		o.SetManagedFields(nil)
		o.SetOwnerReferences(nil)
		o.SetFinalizers(nil)
		if a := o.GetAnnotations(); a[v1.LastAppliedConfigAnnotation] != "" {
			delete(a, v1.LastAppliedConfigAnnotation)
		}
	}
	switch o := object.(type) {
	case *v1.Service:
		o.Spec.Selector = nil
	case *discoveryv1.EndpointSlice:
		for i := range o.Endpoints {
			e := &o.Endpoints[i]
			e.Zone, e.DeprecatedTopology = nil, nil
			if e.TargetRef != nil {
				e.TargetRef.Namespace, e.TargetRef.UID, e.TargetRef.ResourceVersion = "", "", ""
			}
		}
	}
	return object, nil
}
