package kube

import (
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"

	"redial/config"
)

// What is wrong with the annotations of a Service, and of the objects that have its endpoints, becomes an event on the
// Service, which says what applies instead.
func TestWrongAnnotationsBecomeEvents(t *testing.T) {
	//lint:ignore SA1019 it is what old API servers have
	heavy := &v1.Endpoints{Subsets: []v1.EndpointSubset{{
		Addresses: []v1.EndpointAddress{{IP: "198.19.0.7"}}, Ports: []v1.EndpointPort{{Name: "http", Port: 8080}},
	}}}
	heavy.TypeMeta, heavy.ObjectMeta = meta1("Endpoints", "v1", "web")
	heavy.Annotations = map[string]string{"redial/weight": "heavy"}
	light := slice("web-1", "web", "198.19.0.1")
	light.Annotations = map[string]string{"redial/weight": "-1"}

	for name, c := range map[string]struct {
		change func(*apiServer)
		notes  []string // of the events, in parts
	}{
		"Service": {func(api *apiServer) {
			s := service("web", "198.18.0.1")
			s.Annotations = map[string]string{"redial/hedge": "no", "redial/weights": "web-0=x"}
			api.put("services", s)
		}, []string{`annotation redial/weights "web-0=x"`, `annotation redial/hedge "no" .*the proxy's own delay is used`}},
		"EndpointSlice": {func(api *apiServer) { api.put("endpointslices", light) },
			[]string{`EndpointSlice .*web-1.*annotation redial/weight "-1" .*its endpoints have the weight 1`}},
		"Endpoints": {func(api *apiServer) {
			api.noSlices = true
			api.put("endpoints", heavy)
		}, []string{`Endpoints.*annotation redial/weight "heavy" .*its endpoints have the weight 1`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := web(t)
			c.change(api)
			b := follow(t, api)
			reporting, err := Client(ClientConfig{Master: api.url})
			require.NoError(t, err)
			logger, logs := logtest.NewNullLogger()
			e := &eventRig{T: t, events: NewEvents(EventsConfig{Client: reporting, NodeName: "node-1", UID: b.source.UID, Log: logrus.NewEntry(logger)})}
			e.run()
			b.until("the problems", func() bool {
				s := b.state["default/web"]
				if s == nil {
					return false
				}
				for _, p := range s.Problems {
					e.events.Report(s.Name, p)
				}
				return len(s.Problems) >= len(c.notes)
			})
			var events []*eventsv1.Event
			b.fact("the events are written", func() bool {
				api.set(func() { events = api.events })
				return len(events) == len(c.notes)
			})
			for i, note := range c.notes {
				require.Regexp(t, note, events[i].Note)
				require.Equal(t, config.ReasonInvalidAnnotation, events[i].Reason)
				require.Equal(t, v1.EventTypeWarning, events[i].Type)
				require.Equal(t, v1.ObjectReference{Kind: "Service", APIVersion: "v1", Namespace: "default", Name: "web", UID: "uid-web"}, events[i].Regarding)
				require.True(t, strings.HasPrefix(events[i].Name, "web."))
			}
			require.Empty(t, logs.AllEntries())
		})
	}
}

// Whoever is told of a Service can ask for its UID: an event without is not shown by kubectl describe.
func TestUIDIsKnownFirst(t *testing.T) {
	t.Parallel()
	var known []types.UID
	s := newRig(t, newAPIServer(t)).source
	set := s.services.set
	s.services.set = func(o any) error {
		known = append(known, s.UID(config.ServiceName{Namespace: "default", Name: "web"}))
		return set(o)
	}
	require.NoError(t, s.services.Add(service("web", "198.18.0.1")))
	require.Equal(t, []types.UID{"uid-web"}, known)
}
