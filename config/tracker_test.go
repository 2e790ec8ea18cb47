package config

import (
	"net/netip"
	"reflect"
	"sync"
	"testing"
	"time"
	"unique"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func at(ip string) *v1.Service {
	return newService(func(s *v1.Service) { s.Spec.ClusterIP = ip })
}

func signalled(t *Tracker) bool {
	select {
	case <-t.Changed():
		return true
	default:
		return false
	}
}

// What several events before one Take come to.
func TestCoalescing(t *testing.T) {
	add := func(ip string) func(*Tracker) { return func(t *Tracker) { t.SetService(at(ip)) } }
	del := func(t *Tracker) { t.DeleteService(web) }
	for _, c := range []struct {
		name   string
		before string // the ClusterIP taken first; "" is no Service
		events []func(*Tracker)
		want   string // "same" is no change, "gone" a deletion
	}{
		{"add", "", []func(*Tracker){add("10.0.0.1")}, "10.0.0.1"},
		{"add, update", "", []func(*Tracker){add("10.0.0.1"), add("10.0.0.2")}, "10.0.0.2"},
		{"add, delete", "", []func(*Tracker){add("10.0.0.1"), del}, "same"},
		{"update, update", "10.0.0.1", []func(*Tracker){add("10.0.0.2"), add("10.0.0.3")}, "10.0.0.3"},
		{"update and back", "10.0.0.1", []func(*Tracker){add("10.0.0.2"), add("10.0.0.1")}, "same"},
		{"update, delete", "10.0.0.1", []func(*Tracker){add("10.0.0.2"), del}, "gone"},
		{"delete, add", "10.0.0.1", []func(*Tracker){del, add("10.0.0.2")}, "10.0.0.2"},
		{"delete, the same again", "10.0.0.1", []func(*Tracker){del, add("10.0.0.1")}, "same"},
		{"delete", "10.0.0.1", []func(*Tracker){del}, "gone"},
		{"delete twice", "10.0.0.1", []func(*Tracker){del, del}, "gone"},
		{"delete the unknown", "", []func(*Tracker){del}, "same"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := delivered()
			if c.before != "" {
				tr.SetService(at(c.before))
				require.Len(t, tr.Take(), 1)
			}
			for _, e := range c.events {
				e(tr)
			}
			got := tr.Take()
			switch c.want {
			case "same":
				require.Empty(t, got)
			case "gone":
				require.Equal(t, Changes{web: nil}, got)
			default:
				require.Len(t, got, 1)
				require.Equal(t, addrs(c.want), got[web].Ports[0].ClusterIPs)
			}
			require.Empty(t, tr.Take(), "taken is taken")
		})
	}
}

func TestNothingBeforeBothAreDelivered(t *testing.T) {
	for _, servicesFirst := range []bool{true, false} {
		tr := NewTracker(Options{})
		first, second := tr.ServicesDelivered, tr.EndpointsDelivered
		if !servicesFirst {
			first, second = second, first
		}
		tr.SetService(newService())
		require.False(t, signalled(tr))
		require.Nil(t, tr.Take())
		first()
		tr.SetSlice(newSlice("web-1", "10.1.0.1"))
		require.False(t, signalled(tr))
		require.Nil(t, tr.Take())
		second()
		require.True(t, signalled(tr))
		require.Equal(t, []string{"10.1.0.1:8080"}, eps(t, tr.Take()[web], "http"), "the first change is complete")
		first()
		second()
		require.False(t, signalled(tr))
	}
}

func TestNodeIsAwaited(t *testing.T) {
	tr := NewTracker(Options{AwaitNode: true})
	tr.SetService(newService())
	tr.ServicesDelivered()
	tr.EndpointsDelivered()
	require.False(t, signalled(tr))
	require.Nil(t, tr.Take())
	tr.SetNode(Node{Name: "node-a"})
	require.False(t, signalled(tr), "that is for the source to say")
	tr.NodeDelivered()
	require.True(t, signalled(tr))
	require.Len(t, tr.Take(), 1)
	tr.NodeDelivered()
	require.False(t, signalled(tr))
}

func TestDeliveredWithNothing(t *testing.T) {
	tr := NewTracker(Options{})
	tr.ServicesDelivered()
	tr.EndpointsDelivered()
	require.True(t, signalled(tr), "that there is nothing is news")
	got := tr.Take()
	require.NotNil(t, got)
	require.Empty(t, got)
}

func TestSignals(t *testing.T) {
	tr := delivered()
	require.False(t, signalled(tr))
	tr.SetService(newService())
	tr.SetService(at("10.0.0.9"))
	require.True(t, signalled(tr))
	require.False(t, signalled(tr), "several changes are one signal")
	tr.Take()

	tr.SetSlice(newSlice("web-1", "10.1.0.1"))
	tr.Take()
	require.False(t, signalled(tr), "Take answers the signal")

	for name, event := range map[string]func(){
		"the same Service": func() {
			tr.SetService(newService(func(s *v1.Service) { s.Spec.ClusterIP, s.ResourceVersion = "10.0.0.9", "77" }))
		},
		"the same slice": func() {
			s := newSlice("web-1", "10.1.0.1")
			s.ResourceVersion, s.Endpoints[0].Zone = "78", ptr("z")
			tr.SetSlice(s)
		},
		"endpoints of nobody": func() {
			s := newSlice("other-1", "10.1.0.1")
			s.Labels[discoveryv1.LabelServiceName] = "other"
			tr.SetSlice(s)
			tr.SetEndpoints(newEndpoints())
			tr.DeleteEndpoints(ServiceName{"default", "nobody"})
			tr.DeleteSlice("default", "nobody")
		},
		"a slice without label": func() {
			s := newSlice("free", "10.1.0.1")
			s.Labels = nil
			tr.SetSlice(s)
		},
	} {
		tr.Take()
		event()
		if name != "endpoints of nobody" { // the Endpoints of web are a change that turns out to be none
			require.False(t, signalled(tr), name)
		}
		require.Empty(t, tr.Take(), name)
	}
}

func TestHold(t *testing.T) {
	tr := delivered()
	tr.SetService(newService())
	tr.SetSlice(newSlice("web-1", "10.1.0.1"))
	tr.SetSlice(newSlice("web-2"))
	tr.Take()

	release, nested := tr.Hold(), tr.Hold()
	tr.SetSlice(newSlice("web-1"))
	require.False(t, signalled(tr))
	require.Empty(t, tr.Take(), "the endpoint is on its way to the other slice")
	tr.SetSlice(newSlice("web-2", "10.1.0.1"))
	nested()
	nested()
	require.False(t, signalled(tr))
	release()
	require.True(t, signalled(tr))
	require.Empty(t, tr.Take(), "it has never been away")

	tr.SetService(at("10.0.0.7"))
	require.True(t, signalled(tr))
	release = tr.Hold()
	require.Empty(t, tr.Take())
	release()
	require.True(t, signalled(tr), "a signal read during the hold is given again")
	require.Len(t, tr.Take(), 1)

	release = tr.Hold()
	release()
	require.False(t, signalled(tr))
}

func TestSliceChangesItsService(t *testing.T) {
	tr := delivered()
	tr.SetService(newService())
	tr.SetService(newService(func(s *v1.Service) { s.Name = "api" }))
	tr.SetSlice(newSlice("x", "10.1.0.1"))
	got := tr.Take()
	require.Equal(t, []string{"10.1.0.1:8080"}, eps(t, got[web], "http"))

	moved := newSlice("x", "10.1.0.1")
	moved.Labels[discoveryv1.LabelServiceName] = "api"
	tr.SetSlice(moved)
	got = tr.Take()
	require.Empty(t, eps(t, got[web], "http"))
	require.Equal(t, []string{"10.1.0.1:8080"}, eps(t, got[ServiceName{"default", "api"}], "http"))

	moved.Labels = nil
	tr.SetSlice(moved)
	require.Empty(t, eps(t, tr.Take()[ServiceName{"default", "api"}], "http"))
	tr.DeleteSlice("default", "x")
	require.Empty(t, tr.Take())
}

func TestEndpointsOfADeletedService(t *testing.T) {
	tr := delivered()
	tr.SetSlice(newSlice("web-1", "10.1.0.1"))
	tr.SetService(newService())
	tr.Take()
	tr.DeleteService(web)
	require.Equal(t, Changes{web: nil}, tr.Take())
	tr.SetService(newService())
	require.Equal(t, []string{"10.1.0.1:8080"}, eps(t, tr.Take()[web], "http"), "they were not deleted")
	tr.DeleteService(web)
	tr.DeleteSlice("default", "web-1")
	tr.Take()
	require.Empty(t, tr.services, "nothing is remembered of what is gone")
	require.Empty(t, tr.owners)
}

// Only the changed Services are in a change, and what is shared between two values stays as it was.
func TestChangesAreNarrow(t *testing.T) {
	tr := delivered()
	tr.SetService(newService())
	tr.SetService(newService(func(s *v1.Service) { s.Name = "api" }))
	first := tr.Take()[web]
	tr.SetSlice(newSlice("web-1", "10.1.0.1"))
	got := tr.Take()
	require.Len(t, got, 1)
	require.Empty(t, first.Ports[0].Endpoints)
	require.True(t, first.Ports[0].SameFrontend(got[web].Ports[0]))
}

// What was handed out does not change when the same Service is put together again with other endpoints.
func TestValuesAreImmutable(t *testing.T) {
	tr := delivered()
	tr.SetService(newService(func(s *v1.Service) { s.Spec.ExternalIPs = []string{"a", "b", "c"} }))
	tr.SetSlice(newSlice("web-1", "x"))
	first := tr.Take()[web]
	require.Len(t, first.Problems, 4)
	last := first.Problems[3]
	require.Contains(t, last.Message, `"x"`)
	tr.SetSlice(newSlice("web-1", "y"))
	second := tr.Take()[web]
	require.NotNil(t, second, "another problem is a change")
	require.Contains(t, second.Problems[3].Message, `"y"`)
	require.Equal(t, last, first.Problems[3])
}

// Every field of a Service counts when two are compared: a forgotten one would be a change that never arrives.
func TestEqualComparesEveryField(t *testing.T) {
	full := func() *Service {
		return &Service{Ports: []ServicePort{{Endpoints: []Endpoint{{}}, Settings: &Settings{}}}}
	}
	var mutations []func(*Service)
	mutations = append(mutations, fieldMutations(func(s *Service) reflect.Value { return reflect.ValueOf(s).Elem() })...)
	mutations = append(mutations, fieldMutations(func(s *Service) reflect.Value { return reflect.ValueOf(&s.Ports[0]).Elem() })...)
	mutations = append(mutations, fieldMutations(func(s *Service) reflect.Value { return reflect.ValueOf(&s.Ports[0].Endpoints[0]).Elem() })...)
	mutations = append(mutations, fieldMutations(func(s *Service) reflect.Value { return reflect.ValueOf(s.Ports[0].Settings).Elem() })...)
	require.True(t, full().equal(full()))
	for _, m := range mutations {
		changed := full()
		m(changed)
		if !changed.Triggered.IsZero() {
			require.True(t, full().equal(changed), "when a change was triggered is not a change")
			continue
		}
		require.False(t, full().equal(changed), "%+v", changed)
	}
	nobody := full()
	nobody.Ports[0].SourceRanges = []netip.Prefix{}
	require.False(t, full().equal(nobody), "nobody is not everybody")
	nothing := full()
	nothing.Ports[0].Settings = nil
	require.True(t, full().equal(nothing), "to ask for nothing is not to ask")
}

// fieldMutations changes one field each of the struct that get finds.
func fieldMutations(get func(*Service) reflect.Value) []func(*Service) {
	var out []func(*Service)
	for i := range get(&Service{Ports: []ServicePort{{Endpoints: []Endpoint{{}}, Settings: &Settings{}}}}).NumField() {
		out = append(out, func(s *Service) {
			f := get(s).Field(i)
			switch f.Kind() {
			case reflect.Slice:
				f.Set(reflect.Append(f, reflect.Zero(f.Type().Elem())))
			case reflect.Pointer:
				f.Set(reflect.New(f.Type().Elem()))
				f.Elem().Field(0).SetString("x")
			case reflect.Struct:
				switch f.Addr().Interface().(type) {
				case *Setting[time.Duration]:
					f.Set(reflect.ValueOf(SetTo[time.Duration](0)))
				case *Setting[int32]:
					f.Set(reflect.ValueOf(SetTo[int32](0)))
				case *Setting[uint16]:
					f.Set(reflect.ValueOf(SetTo[uint16](0)))
				case *ServiceName:
					f.Set(reflect.ValueOf(ServiceName{"a", "b"}))
				case *unique.Handle[Place]:
					f.Set(reflect.ValueOf(Place{NodeName: "x"}.handle()))
				case *ServicePortName:
					f.Set(reflect.ValueOf(ServicePortName{Port: "x"}))
				default: // time.Time, netip.AddrPort: any other value
					other := reflect.New(f.Type())
					for _, text := range []string{"2026-01-02T03:04:05Z", "10.0.0.1:80"} {
						if u, ok := other.Interface().(interface{ UnmarshalText([]byte) error }); ok && u.UnmarshalText([]byte(text)) == nil {
							f.Set(other.Elem())
							return
						}
					}
					panic("no other value for " + f.Type().String())
				}
			case reflect.String:
				f.SetString("x")
			case reflect.Bool:
				f.SetBool(true)
			case reflect.Int64:
				f.SetInt(1)
			case reflect.Uint8, reflect.Uint16:
				f.SetUint(1)
			default:
				panic("no other value for " + f.Type().String())
			}
		})
	}
	return out
}

// For the race detector, and for the last state to arrive whatever happened in between.
func TestConcurrentUse(t *testing.T) {
	tr := NewTracker(Options{})
	stop := make(chan struct{})
	var writers, reader sync.WaitGroup
	state := map[ServiceName]*Service{}
	reader.Go(func() {
		for {
			select {
			case <-tr.Changed():
			case <-stop:
				return
			}
			for name, s := range tr.Take() {
				state[name] = s
			}
		}
	})
	for i := range 4 {
		writers.Go(func() {
			name := string(rune('a' + i))
			for n := range 200 {
				release := tr.Hold()
				tr.SetService(newService(func(s *v1.Service) { s.Name = name; s.Spec.Ports[0].Port = int32(n + 1) }))
				slice := newSlice(name, "10.1.0.1")
				slice.Labels[discoveryv1.LabelServiceName] = name
				tr.SetSlice(slice)
				release()
				if n%10 == 0 {
					tr.DeleteService(ServiceName{"default", name})
					tr.DeleteSlice("default", name)
				}
			}
		})
	}
	tr.ServicesDelivered()
	tr.EndpointsDelivered()
	writers.Wait()
	close(stop)
	reader.Wait()
	for name, s := range tr.Take() {
		state[name] = s
	}
	require.Len(t, state, 4)
	for _, s := range state {
		require.Equal(t, uint16(200), s.Ports[0].Port)
		require.Len(t, s.Ports[0].Endpoints, 1)
	}
}
