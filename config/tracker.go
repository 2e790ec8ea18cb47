package config

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Changes maps each Service that changed to its whole new value; nil means that the Service is gone.
type Changes map[ServiceName]*Service

// Tracker turns a stream of objects into a stream of [Changes]. What it hands out depends on the objects that exist
// when [Tracker.Take] is called and on what was taken before, never on the order of events.
//
// All methods may be called from any goroutine. Objects passed in are neither modified nor kept. For one object, calls
// must arrive in the order of its versions.
type Tracker struct {
	opts    Options
	changed chan struct{}

	mu       sync.Mutex
	node     Node
	services map[ServiceName]*tracked
	// owners remembers under which Service a slice was filed, since a slice's label may change and a deletion carries
	// no label. Slices without the label are not filed.
	owners map[objectName]ServiceName
	// dirty are the Services that have to be looked at by Take: work follows the changes, not the number of Services.
	dirty map[ServiceName]struct{}
	// Until all are true, what is known may be a part only, and acting on it would tear down what the rest still wants.
	servicesDelivered, endpointsDelivered, nodeDelivered bool
	// holds counts the sources in the middle of something; held is the signal they hold back.
	holds int
	held  bool
}

// objectName identifies an EndpointSlice.
type objectName struct{ namespace, name string }

// tracked is everything known about one Service name. It exists as long as any object refers to the name.
type tracked struct {
	// service is the translated object, whose endpoints mean nothing; nil when there is none.
	service *Service
	// slices are few, nearly always one, so that a map of them would be the largest part of this.
	slices []*endpointSet
	// endpoints is the v1.Endpoints of the same name; nil when there is none.
	endpoints *endpointSet
	// taken is what Take handed out last; nil when that was nothing or a deletion.
	taken *Service
}

// Options say which Services are served, and where. The zero value serves those that are for nobody else.
type Options struct {
	// Node is what is known of the node before [Tracker.SetNode] is called: usually its name.
	Node Node
	// AwaitNode has nothing handed out before [Tracker.NodeDelivered] is called as well: with the node's addresses unknown,
	// NodePorts that an earlier run has open at them would be closed, its pods taken for strangers, and its zone ignored.
	AwaitNode bool
	// PrimaryIP, if valid, is the primary address of the node in its family, whatever SetNode says.
	PrimaryIP netip.Addr
	// ServiceProxyName, if not empty, has only Services served whose label service.kubernetes.io/service-proxy-name has
	// this value. Empty means those without the label.
	ServiceProxyName string
	// DisableExternalIPs has spec.externalIPs ignored: anybody who may create a Service can take over any address with
	// them (CVE-2020-8554).
	DisableExternalIPs bool
}

// NewTracker returns a Tracker that knows nothing. It starts no goroutine.
func NewTracker(opts Options) *Tracker {
	return &Tracker{
		opts:     opts,
		node:     opts.Node.withPrimary(opts.PrimaryIP),
		changed:  make(chan struct{}, 1),
		services: map[ServiceName]*tracked{},
		owners:   map[objectName]ServiceName{},
		dirty:    map[ServiceName]struct{}{},

		nodeDelivered: !opts.AwaitNode,
	}
}

// SetService adds or replaces a Service.
func (t *Tracker) SetService(svc *v1.Service) {
	value := translate(svc, t.opts)
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(value.Name)
	if e.service != nil && e.service.sameObject(&value) {
		return
	}
	e.service = &value
	t.touch(value.Name)
}

// DeleteService removes a Service. Its endpoints stay known until they are deleted themselves: if the Service comes back,
// it has them at once.
func (t *Tracker) DeleteService(name ServiceName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e, ok := t.services[name]; ok && e.service != nil {
		e.service = nil
		t.touch(name)
	}
}

// SetSlice adds or replaces an EndpointSlice. It belongs to the Service its label kubernetes.io/service-name names; one
// without the label belongs to none. One with the label service.kubernetes.io/headless is not for Service proxies: it
// counts as deleted.
func (t *Tracker) SetSlice(slice *discoveryv1.EndpointSlice) {
	key := objectName{namespace(slice.Namespace), slice.Name}
	var owner ServiceName
	var set *endpointSet
	_, headless := slice.Labels[v1.IsHeadlessService]
	if name := slice.Labels[discoveryv1.LabelServiceName]; name != "" && !headless {
		owner = ServiceName{Namespace: key.namespace, Name: name}
		set = translateSlice(slice)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if old, ok := t.owners[key]; ok && old != owner {
		t.removeSlice(key)
	}
	if set == nil {
		return
	}
	t.owners[key] = owner
	e := t.entry(owner)
	set.name = key.name
	switch i := e.slice(key.name); {
	case i < 0:
		e.slices = append(slices.Clip(e.slices), set)
	case e.slices[i].equal(set):
		return
	default:
		set.triggered = newer(set.triggered, e.slices[i].triggered)
		e.slices[i] = set
	}
	t.touch(owner)
}

// DeleteSlice removes an EndpointSlice.
func (t *Tracker) DeleteSlice(ns, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeSlice(objectName{namespace(ns), name})
}

// SetEndpoints adds or replaces a v1.Endpoints. It counts only while its Service has no EndpointSlice at all: where
// slices exist they are the truth, and a cluster mirrors every hand-written Endpoints into slices anyway.
//
//lint:ignore SA1019 see translateEndpoints
func (t *Tracker) SetEndpoints(eps *v1.Endpoints) {
	name := ServiceName{Namespace: namespace(eps.Namespace), Name: eps.Name}
	set := translateEndpoints(eps)
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(name)
	if e.endpoints != nil && e.endpoints.equal(set) {
		return
	}
	e.endpoints = set
	t.touch(name)
}

// DeleteEndpoints removes a v1.Endpoints.
func (t *Tracker) DeleteEndpoints(name ServiceName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e, ok := t.services[name]; ok && e.endpoints != nil {
		e.endpoints = nil
		t.touch(name)
	}
}

// SetNode replaces what is known of the node.
func (t *Tracker) SetNode(n Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n = n.withPrimary(t.opts.PrimaryIP)
	if t.node.Equal(n) {
		return
	}
	t.node = n
	if t.complete() {
		t.wake()
	}
}

// Node returns what is known of the node. A change of it makes [Tracker.Changed] readable, like one of a Service.
func (t *Tracker) Node() Node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.node
}

// ServicesDelivered tells that every Service that existed when the source started has been handed over.
func (t *Tracker) ServicesDelivered() { t.delivered(&t.servicesDelivered) }

// EndpointsDelivered tells the same of every EndpointSlice and Endpoints.
func (t *Tracker) EndpointsDelivered() { t.delivered(&t.endpointsDelivered) }

// NodeDelivered tells that the node has been handed over, or that there is none to wait for. It matters with
// [Options].AwaitNode only.
func (t *Tracker) NodeDelivered() { t.delivered(&t.nodeDelivered) }

func (t *Tracker) delivered(what *bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if *what {
		return
	}
	*what = true
	// Also with nothing to take: that nothing exists is news for whoever has an earlier run's state to remove.
	if t.complete() {
		t.wake()
	}
}

// Hold lets the caller hand over several objects as one change: until release is called, nothing can be taken. It is for
// sources that see a new state as a whole, and not to be held for long. release may be called more than once.
func (t *Tracker) Hold() (release func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holds++
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.holds--; t.holds == 0 && t.held {
			t.held = false
			t.wake()
		}
	})
}

// Changed is readable when there may be something to [Tracker.Take]. It becomes so for the first time when Services,
// endpoints and the node, if it is awaited, have been delivered, even if there are none. Several changes are one signal; it is for one reader.
func (t *Tracker) Changed() <-chan struct{} { return t.changed }

// Take returns the Services whose value differs from the one taken last, and takes them. What was added and deleted
// since is not in it, nor what changed and changed back. It is nil, and takes nothing, before Services, endpoints and
// an awaited node have been delivered; afterwards it may be empty but is not nil. While a source holds changes back it is empty.
func (t *Tracker) Take() Changes {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.complete() {
		return nil
	}
	if t.holds > 0 {
		t.held = true // the signal that led here has been read: there has to be another
		return Changes{}
	}
	select {
	case <-t.changed:
	default:
	}
	changes := make(Changes, len(t.dirty))
	for name := range t.dirty {
		e := t.services[name]
		switch value := e.value(); {
		case value == nil && e.taken == nil:
		case value != nil && e.taken != nil && value.equal(e.taken):
		default:
			changes[name] = value
			e.taken = value
			if value != nil && len(value.Problems) == len(e.service.Problems) {
				e.service = value // which is the same but for endpoints: nothing is kept twice
			}
		}
		for _, s := range e.slices {
			s.triggered = time.Time{}
		}
		if e.service == nil && len(e.slices) == 0 && e.endpoints == nil {
			delete(t.services, name)
		}
	}
	// A map keeps the buckets of its largest size; the first delivery is by far the largest.
	t.dirty = map[ServiceName]struct{}{}
	return changes
}

// value is the Service as it is now; nil when there is none.
func (e *tracked) value() *Service {
	if e.service == nil {
		return nil
	}
	var last time.Time
	for _, s := range e.slices {
		last = newer(last, s.triggered)
	}
	sets := e.slices
	if len(sets) == 0 && e.endpoints != nil {
		sets = []*endpointSet{e.endpoints}
	}
	value := merge(e.service, sets)
	value.Triggered = last
	return value
}

// slice is the index of a slice; -1 if it is not there.
func (e *tracked) slice(name string) int {
	return slices.IndexFunc(e.slices, func(s *endpointSet) bool { return s.name == name })
}

func newer(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// The methods below need t.mu.

func (t *Tracker) complete() bool {
	return t.servicesDelivered && t.endpointsDelivered && t.nodeDelivered
}

func (t *Tracker) entry(name ServiceName) *tracked {
	e, ok := t.services[name]
	if !ok {
		e = &tracked{}
		t.services[name] = e
	}
	return e
}

func (t *Tracker) removeSlice(key objectName) {
	owner, ok := t.owners[key]
	if !ok {
		return
	}
	delete(t.owners, key)
	e := t.services[owner]
	i := e.slice(key.name)
	e.slices = slices.Delete(e.slices, i, i+1)
	t.touch(owner)
}

// touch marks a Service for the next Take. A Service that does not exist and never was taken is marked too, so that Take
// can forget it, but wakes nobody.
func (t *Tracker) touch(name ServiceName) {
	t.dirty[name] = struct{}{}
	if e := t.services[name]; t.complete() && (e.service != nil || e.taken != nil) {
		t.wake()
	}
}

func (t *Tracker) wake() {
	if t.holds > 0 {
		t.held = true
		return
	}
	select {
	case t.changed <- struct{}{}:
	default:
	}
}
