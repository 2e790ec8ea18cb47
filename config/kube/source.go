package kube

import (
	"context"
	"fmt"
	"sync"

	"github.com/sirupsen/logrus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"

	"redial/config"
)

// labelServiceProxyName hands a Service to the proxy of that name. The API module has no constant for it.
const labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// Config says what to follow, and for whom. Client, Tracker and Log are needed.
type Config struct {
	Client  kubernetes.Interface
	Tracker *config.Tracker
	// NodeName is the Node that is served; empty means that none is followed.
	NodeName string
	// ServiceProxyName is that of the Tracker's [config.Options]: the Services asked for are those labelled with it, or those
	// without the label if it is empty.
	ServiceProxyName string
	// EndpointSource is one of the constants; empty means EndpointsAuto.
	EndpointSource string
	Log            *logrus.Entry

	limits limits
}

// Source hands the objects of the Kubernetes API to a Tracker. Create it with New; it does nothing until Run.
type Source struct {
	cfg      Config
	progress *progress
	services *store
	node     *nodeStore // nil without a name

	servicesFeed, slicesFeed, endpointsFeed, nodeFeed *feed
	endpointsResource                                 *resource
	followServiceCIDRs                                func(context.Context) // nil: nobody asks for them

	mu             sync.Mutex
	endpointSource string // empty: not yet chosen
}

// New returns the source. It starts nothing and asks nothing.
func New(cfg Config) *Source {
	cfg.limits = cfg.limits.defaults()
	s := &Source{cfg: cfg, progress: &progress{log: cfg.Log, patience: cfg.limits.patience}}
	t := cfg.Tracker

	r := s.progress.add("services")
	s.services = &store{
		set:       setter(t.SetService),
		remove:    t.DeleteService,
		hold:      t.Hold,
		delivered: t.ServicesDelivered,
		resource:  r,
		uids:      map[config.ServiceName]types.UID{},
		keepUIDs:  true,
	}
	s.servicesFeed = s.newFeed(r, &v1.Service{}, s.services,
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return cfg.Client.CoreV1().Services("").List(ctx, o)
		},
		func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return cfg.Client.CoreV1().Services("").Watch(ctx, o)
		})
	s.servicesFeed.labels = "!" + labelServiceProxyName
	if cfg.ServiceProxyName != "" {
		s.servicesFeed.labels = labelServiceProxyName + "=" + cfg.ServiceProxyName
	}
	s.servicesFeed.tryFields = fields.OneTermNotEqualSelector("spec.clusterIP", v1.ClusterIPNone).String()

	s.addEndpoints()

	if cfg.NodeName != "" {
		r := s.progress.add("nodes")
		s.node = &nodeStore{name: cfg.NodeName, tracker: t, resource: r, state: NodeUnknown,
			log: cfg.Log.WithField("node", cfg.NodeName)}
		s.nodeFeed = s.newFeed(r, &v1.Node{}, s.node,
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return cfg.Client.CoreV1().Nodes().List(ctx, o)
			},
			func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return cfg.Client.CoreV1().Nodes().Watch(ctx, o)
			})
		s.nodeFeed.fields = fields.OneTermEqualSelector("metadata.name", cfg.NodeName).String()
		// Services can be served without, and whoever has not been given the right may never be.
		s.nodeFeed.forbidden = t.NodeDelivered
	} else {
		t.NodeDelivered()
	}
	return s
}

// setter hands an object of type T over.
func setter[T any](set func(T)) func(any) error {
	return func(object any) error {
		o, ok := object.(T)
		if !ok {
			return fmt.Errorf("the API server sent a %T instead of a %T", object, o)
		}
		set(o)
		return nil
	}
}

func (s *Source) newFeed(r *resource, kind runtime.Object, st cache.ReflectorStore,
	list func(context.Context, metav1.ListOptions) (runtime.Object, error),
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error),
) *feed {
	f := &feed{list: list, watch: watch, kind: kind, store: st, resource: r, limits: s.cfg.limits,
		log: s.cfg.Log.WithField("resource", r.name)}
	// A client that is a fake without streaming says so.
	f.noWatchList.Store(watchlist.DoesClientNotSupportWatchListSemantics(s.cfg.Client))
	return f
}

// Run follows the API until ctx ends, and returns nil then. It may be called once. No failure of the API ends it: it tries
// again for ever, and what is known stays in force.
func (s *Source) Run(ctx context.Context) error {
	s.progress.start()
	defer s.progress.stop()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { s.servicesFeed.run(ctx) })
	running.Go(func() { s.followEndpoints(ctx) })
	if s.nodeFeed != nil {
		running.Go(func() { s.nodeFeed.run(ctx) })
	}
	if s.followServiceCIDRs != nil {
		running.Go(func() { s.followServiceCIDRs(ctx) })
	}
	return nil
}

// UID returns the UID of a Service as last seen; empty if there is none. It may be called from any goroutine.
func (s *Source) UID(name config.ServiceName) types.UID { return s.services.uid(name) }
