package config

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// event is one call on a Tracker; object says whose state it sets.
type event struct {
	object string
	apply  func(*Tracker)
}

// loadBalancer makes s one with policy Local.
func loadBalancer(s *v1.Service, ranges ...string) {
	s.Spec.Type, s.Spec.LoadBalancerSourceRanges = v1.ServiceTypeLoadBalancer, ranges
	s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = v1.ServiceExternalTrafficPolicyLocal, 32000
	s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.1"}}
}

// universe is a few objects in a few versions each, absence included, that get in each other's way: shared addresses,
// slices that change hands, Services that come and go, Endpoints beside slices.
func universe() []event {
	var out []event
	for _, name := range []string{"web", "api"} {
		object := "Service " + name
		out = append(out, event{object, func(t *Tracker) { t.DeleteService(ServiceName{"default", name}) }})
		for _, change := range []func(*v1.Service){
			func(*v1.Service) {},
			func(s *v1.Service) { s.Spec.ClusterIP = "10.0.0.2" },
			func(s *v1.Service) { s.Spec.ClusterIP = "None" },
			func(s *v1.Service) { s.Spec.Ports[0].Name = "web" },
			func(s *v1.Service) { s.Spec.ExternalIPs = []string{"bad", "192.0.2.1"} },
			func(s *v1.Service) { s.Spec.ClusterIPs = []string{"10.0.0.1", "fd00::1"} },
			func(s *v1.Service) { s.Spec.InternalTrafficPolicy = ptr(v1.ServiceInternalTrafficPolicyLocal) },
			func(s *v1.Service) { loadBalancer(s) },
			func(s *v1.Service) { loadBalancer(s, "10.0.0.0/8") },
			func(s *v1.Service) { loadBalancer(s, "x") },
			func(s *v1.Service) { s.Labels = map[string]string{labelServiceProxyName: "x"} },
			annotated("scheduler=wrr"),
			annotated("scheduler=lc", "weights=10.1.0.1=7,web-1=0"),
			annotated("weights=10.1.0.1=7,web-0=0"),
			annotated("weights=x", "hedge=off", "huge=off"),
		} {
			svc := newService(change)
			svc.Name = name
			out = append(out, event{object, func(t *Tracker) { t.SetService(svc) }})
		}
		object = "Endpoints " + name
		out = append(out, event{object, func(t *Tracker) { t.DeleteEndpoints(ServiceName{"default", name}) }})
		for _, ip := range []string{"10.2.0.1", "10.2.0.2"} {
			eps := newEndpoints(subset([]string{ip}, nil, v1.EndpointPort{Name: "http", Port: 8080}))
			eps.Name = name
			out = append(out, event{object, func(t *Tracker) { t.SetEndpoints(eps) }})
		}
	}
	for i := range 3 {
		name := fmt.Sprintf("slice-%d", i)
		object := "EndpointSlice " + name
		out = append(out, event{object, func(t *Tracker) { t.DeleteSlice("default", name) }})
		for _, owner := range []string{"web", "api", ""} {
			for version := range 3 {
				s := newSlice(name, "10.1.0.1", fmt.Sprintf("10.1.0.%d", version+2))
				s.Labels[discoveryv1.LabelServiceName] = owner
				ready := version != 1
				s.Endpoints[0].Conditions.Ready = &ready
				s.Endpoints[0].NodeName = ptr(fmt.Sprintf("node-%d", i))
				s.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: second(version + 1).Format(time.RFC3339Nano)}
				s.Endpoints[1].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: fmt.Sprint("zone-", version)}}}
				if version == 1 {
					s.Endpoints[0].Hints = s.Endpoints[1].Hints
				}
				switch i {
				case 1:
					s.Annotations[annotationWeight] = fmt.Sprint(version * 3)
				case 2:
					s.Endpoints[1].TargetRef = &v1.ObjectReference{Kind: "Pod", Name: fmt.Sprint("web-", version)}
				}
				if version == 2 {
					s.Ports[0].Name = ptr("web")
					s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{"fe80::1"}})
				}
				out = append(out, event{object, func(t *Tracker) { t.SetSlice(s) }})
				headless := s.DeepCopy()
				headless.Labels[v1.IsHeadlessService] = ""
				out = append(out, event{object, func(t *Tracker) { t.SetSlice(headless) }})
			}
		}
	}
	for _, zone := range []string{"zone-0", "zone-1"} {
		n := Node{Name: "node-0", Zone: zone}
		out = append(out, event{"Node", func(t *Tracker) { t.SetNode(n) }})
	}
	return out
}

// absorb applies the changes to a state, and checks that each is one.
func absorb(t *testing.T, state map[ServiceName]*Service, changes Changes) {
	t.Helper()
	for name, svc := range changes {
		old := state[name]
		if svc == nil {
			require.NotNil(t, old, "%s is gone that never was", name)
			delete(state, name)
			continue
		}
		require.Equal(t, name, svc.Name)
		requireSound(t, svc)
		require.False(t, old != nil && old.equal(svc), "%s has not changed", name)
		state[name] = svc
	}
}

// fromScratch is what a Tracker makes of the objects, each set once, and the node it knows then.
func fromScratch(last map[string]event) (Changes, Node) {
	t := NewTracker(Options{})
	for _, e := range last {
		e.apply(t)
	}
	t.ServicesDelivered()
	t.EndpointsDelivered()
	return t.Take(), t.Node()
}

// requireState checks that the state folded from changes is what the objects alone make.
func requireState(t *testing.T, last map[string]event, state map[ServiceName]*Service, node Node) {
	t.Helper()
	want, wantNode := fromScratch(last)
	require.Equal(t, wantNode, node)
	require.Equal(t, len(want), len(state))
	for name, svc := range want {
		require.NotNil(t, state[name], name)
		got := *state[name]
		svc.Triggered, got.Triggered = time.Time{}, time.Time{} // of when, not of what
		require.Equal(t, *svc, got)
	}
}

// The state depends on the objects that exist, not on how they came about nor on when changes were taken.
func TestStateIsAFunctionOfTheObjects(t *testing.T) {
	events := universe()
	for seed := range uint64(150) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		tr := NewTracker(Options{})
		state := map[ServiceName]*Service{}
		last := map[string]event{}
		services, endpoints := rnd.IntN(60), rnd.IntN(60)
		for i := range 120 {
			if i == services {
				tr.ServicesDelivered()
			}
			if i == endpoints {
				tr.EndpointsDelivered()
			}
			e := events[rnd.IntN(len(events))]
			e.apply(tr)
			last[e.object] = e
			if rnd.IntN(5) == 0 {
				changes := tr.Take()
				require.Equal(t, i >= services && i >= endpoints, changes != nil)
				absorb(t, state, changes)
			}
		}
		absorb(t, state, tr.Take())
		requireState(t, last, state, tr.Node())
	}
}

// All ways in which the life of a Service, of a slice beside another, and of the node can interleave, taken after every event, after
// every other, and once: in between too, the state is a function of the objects.
func TestAllInterleavings(t *testing.T) {
	service := func(change ...func(*v1.Service)) func(*Tracker) {
		return func(t *Tracker) { t.SetService(newService(change...)) }
	}
	slice := func(s *discoveryv1.EndpointSlice, zone string) func(*Tracker) {
		s.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
		return func(t *Tracker) { t.SetSlice(s) }
	}
	lives := []struct {
		object string
		events []func(*Tracker)
	}{
		{"Service", []func(*Tracker){service(), service(func(s *v1.Service) { loadBalancer(s, "10.0.0.0/8") }),
			func(t *Tracker) { t.DeleteService(web) }, service()}},
		{"slice 1", []func(*Tracker){slice(triggeredAt("web-1", "10.1.0.1", 1), "a"), slice(triggeredAt("web-1", "10.1.0.1", 2), "b"),
			func(t *Tracker) { t.DeleteSlice("default", "web-1") }}},
		{"Node", []func(*Tracker){func(t *Tracker) { t.SetNode(Node{Name: "a"}) }, func(t *Tracker) { t.SetNode(Node{Name: "a", Zone: "a"}) }}},
	}
	other := event{"slice 2", slice(triggeredAt("web-2", "10.1.0.1", 3), "c")} // has the same endpoint all the time
	n := 0
	var order []int
	var interleave func()
	next := make([]int, len(lives))
	interleave = func() {
		done := true
		for i, life := range lives {
			if next[i] == len(life.events) {
				continue
			}
			done = false
			next[i]++
			order = append(order, i)
			interleave()
			order = order[:len(order)-1]
			next[i]--
		}
		if !done {
			return
		}
		n++
		for _, every := range []int{1, 2, len(order)} {
			tr := delivered()
			state, last, at := map[ServiceName]*Service{}, map[string]event{other.object: other}, make([]int, len(lives))
			other.apply(tr)
			for step, i := range order {
				e := event{lives[i].object, lives[i].events[at[i]]}
				at[i]++
				e.apply(tr)
				last[e.object] = e
				if (step+1)%every == 0 {
					absorb(t, state, tr.Take())
					requireState(t, last, state, tr.Node())
				}
			}
			absorb(t, state, tr.Take())
			requireState(t, last, state, tr.Node())
		}
	}
	interleave()
	require.Equal(t, 1260, n)
}

// No order of first arrival matters, with or without a Take between the arrivals.
func TestAllOrdersOfArrival(t *testing.T) {
	objects := []func(*Tracker){
		func(t *Tracker) { t.SetService(newService()) },
		func(t *Tracker) { t.SetSlice(newSlice("web-1", "10.1.0.1", "10.1.0.2")) },
		func(t *Tracker) { t.SetSlice(newSlice("web-2", "10.1.0.2", "10.1.0.3")) },
		func(t *Tracker) {
			t.SetEndpoints(newEndpoints(subset([]string{"10.9.0.9"}, nil, v1.EndpointPort{Name: "http", Port: 1})))
		},
		func(t *Tracker) { t.ServicesDelivered() },
		func(t *Tracker) { t.EndpointsDelivered() },
	}
	want := []string{"10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080"}
	n := 0
	var permute func(k int)
	permute = func(k int) {
		if k == len(objects) {
			n++
			for _, eager := range []bool{false, true} {
				tr := NewTracker(Options{})
				state := map[ServiceName]*Service{}
				for _, o := range objects {
					o(tr)
					if eager {
						absorb(t, state, tr.Take())
					}
				}
				absorb(t, state, tr.Take())
				require.Equal(t, want, eps(t, state[web], "http"))
			}
			return
		}
		for i := k; i < len(objects); i++ {
			objects[k], objects[i] = objects[i], objects[k]
			permute(k + 1)
			objects[k], objects[i] = objects[i], objects[k]
		}
	}
	permute(0)
	require.Equal(t, 720, n)
}

// A change is signalled whenever there is one: a reader that waits for signals misses nothing.
func TestEveryChangeIsSignalled(t *testing.T) {
	events := universe()
	rnd := rand.New(rand.NewPCG(7, 7))
	tr := delivered()
	for range 5000 {
		events[rnd.IntN(len(events))].apply(tr)
		if signalled(tr) {
			tr.Take()
		} else {
			require.Empty(t, tr.Take())
		}
	}
}
