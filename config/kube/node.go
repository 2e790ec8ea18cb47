package kube

import (
	"fmt"
	"sync"

	"github.com/sirupsen/logrus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"redial/config"
)

// What is known of the Node object, as in [Status].
const (
	// NodeUnknown means that the API has not been heard yet.
	NodeUnknown = "unknown"
	// NodeMissing means that there is no such Node; the Tracker has it as leaving.
	NodeMissing = "missing"
	// NodeFound means that the Tracker has it.
	NodeFound = "found"
	// NodeDeleted means that it was there; the Tracker has it as leaving.
	NodeDeleted = "deleted"
)

// nodeStore stands where a reflector expects a cache, for the one Node that is served.
type nodeStore struct {
	name     string
	tracker  *config.Tracker
	resource *resource
	log      *logrus.Entry

	mu    sync.Mutex
	state string
}

// Add implements [cache.ReflectorStore].
func (s *nodeStore) Add(object any) error { return s.Update(object) }

// Update implements [cache.ReflectorStore].
func (s *nodeStore) Update(object any) error {
	node, ok := object.(*v1.Node)
	if !ok {
		return fmt.Errorf("the API server sent a %T instead of a Node", object)
	}
	if node.Name != s.name {
		return nil // whoever answered does not know field selectors
	}
	s.tracker.SetNode(config.TranslateNode(node))
	if before := s.become(NodeFound); before == NodeMissing || before == NodeDeleted {
		s.log.Info("the Node object is here")
	}
	s.resource.holds(1, false)
	return nil
}

// Delete implements [cache.ReflectorStore].
func (s *nodeStore) Delete(object any) error {
	if node, ok := object.(*v1.Node); ok && node.Name != s.name {
		return nil
	}
	s.gone()
	s.resource.holds(0, false)
	return nil
}

// Replace implements [cache.ReflectorStore].
func (s *nodeStore) Replace(objects []any, _ string) error {
	found := 0
	for _, object := range objects {
		node, ok := object.(*v1.Node)
		if ok && node.Name != s.name {
			continue
		}
		found = 1
		if err := s.Update(object); err != nil {
			return err
		}
	}
	if found == 0 {
		s.gone()
	}
	s.resource.holds(found, true)
	s.tracker.NodeDelivered()
	return nil
}

// Resync implements [cache.ReflectorStore].
func (s *nodeStore) Resync() error { return nil }

// Transformer implements [cache.TransformingStore].
func (s *nodeStore) Transformer() cache.TransformFunc { return trim }

// gone is the absence of the Node. What was known stays in force, since its endpoints are where they were; but load
// balancers should turn to others. They should also where it has never been there: it may have been deleted while this
// process was started anew.
func (s *nodeStore) gone() {
	switch s.status() {
	case NodeUnknown:
		s.become(NodeMissing)
		s.leave()
		s.log.Warn("there is no Node object of this name: no endpoint counts as local, so that traffic policy Local drops " +
			"everything and topology hints are not followed, and /healthz tells load balancers to leave; set --hostname-override to the name that kubectl get nodes shows")
	case NodeFound:
		s.become(NodeDeleted)
		s.leave()
		s.log.Warn("the Node object was deleted: serving goes on, and health checks tell load balancers to leave")
	}
}

func (s *nodeStore) leave() {
	node := s.tracker.Node()
	node.Leaving = true
	s.tracker.SetNode(node)
}

func (s *nodeStore) become(state string) (before string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.state = s.state, state
	return before
}

func (s *nodeStore) status() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}
