package kube

import "time"

// Status is how far the source has got, for people and for JSON.
type Status struct {
	// EndpointSource is the one in use; empty means that it is still being found out.
	EndpointSource string `json:"endpointSource,omitempty"`
	// Node is one of the Node constants; empty means that no Node is followed.
	Node string `json:"node,omitempty"`
	// Waiting are the resources of which no list has arrived. While it has any, nothing is served anew, but for
	// nodes that are forbidden.
	Waiting []string `json:"waiting,omitempty"`
	// Error is that of a request that fails at present; empty means that all is well.
	Error string `json:"error,omitempty"`
	// Resources are all of them.
	Resources []ResourceStatus `json:"resources"`
}

// ResourceStatus is how far one resource has got.
type ResourceStatus struct {
	Resource string `json:"resource"`
	// Objects is how many are known.
	Objects int `json:"objects"`
	// Listed is when a whole list arrived last, Event when anything did; zero means never. An API server that is well says
	// something every minute.
	Listed time.Time `json:"listed,omitzero"`
	Event  time.Time `json:"event,omitzero"`
	// Error is why it is not followed at present, since Since; empty means that it is.
	Error string    `json:"error,omitempty"`
	Since time.Time `json:"since,omitzero"`
}

// Status returns how far the source has got. It may be called from any goroutine.
func (s *Source) Status() Status {
	var out Status
	if s.node != nil {
		out.Node = s.node.status()
	}
	s.mu.Lock()
	out.EndpointSource = s.endpointSource
	s.mu.Unlock()
	p := s.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	out.Waiting = p.waiting()
	if err := p.lastError(); err != nil {
		out.Error = err.Error()
	}
	for _, r := range p.resources {
		rs := ResourceStatus{Resource: r.name, Objects: r.objects, Listed: r.listed, Event: r.event, Since: r.since}
		if r.err != nil {
			rs.Error = r.err.Error()
		}
		out.Resources = append(out.Resources, rs)
	}
	return out
}
