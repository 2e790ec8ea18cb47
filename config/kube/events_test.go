package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"redial/config"
)

// eventRig writes events to a fake.
type eventRig struct {
	*testing.T
	events *Events
	logs   *logtest.Hook
	clock  *clocktesting.FakePassiveClock
	// answer is asked before each event is accepted.
	answer func() error
	wrote  chan *eventsv1.Event
	uids   string // how those of Services begin
}

func newEventRig(t *testing.T) *eventRig {
	logger, hook := logtest.NewNullLogger()
	b := &eventRig{T: t, logs: hook, clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0)), wrote: make(chan *eventsv1.Event, 100), uids: "uid-"}
	client := fake.NewClientset()
	client.PrependReactor("create", "events", func(a ktesting.Action) (bool, runtime.Object, error) {
		if b.answer != nil {
			if err := b.answer(); err != nil {
				return true, nil, err
			}
		}
		e := a.(ktesting.CreateAction).GetObject().(*eventsv1.Event)
		b.wrote <- e
		return true, e, nil
	})
	b.events = NewEvents(EventsConfig{Client: client, NodeName: "node-1", Log: logrus.NewEntry(logger), clock: b.clock,
		retry: time.Millisecond, UID: func(n config.ServiceName) types.UID { return types.UID(b.uids + n.Name) }})
	return b
}

func (b *eventRig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.events.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		require.NoError(b, <-ended)
	})
}

func (b *eventRig) next() *eventsv1.Event {
	b.Helper()
	select {
	case e := <-b.wrote:
		return e
	case <-time.After(deadline):
		require.FailNow(b, "no event was written")
		return nil
	}
}

func (b *eventRig) report(message string) {
	b.events.Report(config.ServiceName{Namespace: "default", Name: "web"}, config.Problem{Reason: "InvalidPort", Message: message})
}

func TestEvents(t *testing.T) {
	t.Parallel()
	b := newEventRig(t)
	b.run()
	b.events.Report(config.ServiceName{Namespace: "default", Name: "web"}, config.Problem{Port: "http", Reason: "InvalidPort", Message: "too high"})
	e := b.next()
	require.Equal(t, "default", e.Namespace)
	require.True(t, strings.HasPrefix(e.Name, "web."))
	require.Equal(t, "Warning", e.Type)
	require.Equal(t, "InvalidPort", e.Reason)
	require.Equal(t, "port http: too high", e.Note)
	require.Equal(t, "redial", e.ReportingController)
	require.Equal(t, "redial-node-1", e.ReportingInstance)
	require.NotEmpty(t, e.Action)
	require.Equal(t, b.clock.Now().Unix(), e.EventTime.Unix())
	require.Equal(t, "Service default/web uid-web v1",
		fmt.Sprintf("%s %s/%s %s %s", e.Regarding.Kind, e.Regarding.Namespace, e.Regarding.Name, e.Regarding.UID, e.Regarding.APIVersion))

	// The same is not said again before the API server has forgotten it; with the same reason, something else is.
	b.report("one")
	b.report("one")
	b.report("two")
	require.Equal(t, "one", b.next().Note)
	require.Equal(t, "two", b.next().Note)
	b.clock.SetTime(b.clock.Now().Add(eventTTL - time.Second))
	b.report("one")
	b.report("three")
	require.Equal(t, "three", b.next().Note)
	b.clock.SetTime(b.clock.Now().Add(2 * time.Second))
	b.report("one")
	require.Equal(t, "one", b.next().Note)

	// A Service that has been made anew has not been told anything.
	b.uids = "another-"
	b.report("one")
	require.EqualValues(t, "another-web", b.next().Regarding.UID)
}

func TestEventsFitTheAPI(t *testing.T) {
	t.Parallel()
	b := newEventRig(t)
	b.events.cfg.NodeName = strings.Repeat("n", 250)
	b.run()
	b.report(strings.Repeat("ü", 1000) + "\xff")
	e := b.next()
	require.LessOrEqual(t, len(e.Note), 1024)
	require.Greater(t, len(e.Note), 1000)
	require.True(t, utf8.ValidString(e.Note))
	require.Equal(t, 128, len(e.ReportingInstance))
	b.events.Report(config.ServiceName{Namespace: "default", Name: "web"}, config.Problem{})
	require.NotEmpty(t, b.next().Reason)
}

// Whatever the API server does, the caller is not held up, and the memory is bounded.
func TestReportNeverBlocks(t *testing.T) {
	t.Parallel()
	b := newEventRig(t)
	for i := range 3 * maxQueued {
		b.report(fmt.Sprint(i))
	}
	require.Len(t, b.events.queue, maxQueued)
	require.Len(t, b.events.written, maxQueued, "what was dropped may be reported again")
	require.Len(t, b.logs.AllEntries(), 1, "said once")
}

func TestEventsSurviveAnOutage(t *testing.T) {
	t.Parallel()
	b := newEventRig(t)
	var attempts atomic.Int32
	b.answer = func() error {
		if attempts.Add(1) < 4 {
			return errors.New("connection refused")
		}
		return nil
	}
	b.run()
	b.report("one")
	require.Equal(t, "one", b.next().Note)
	require.EqualValues(t, 4, attempts.Load())
	require.Empty(t, b.logs.AllEntries())
}

func TestEventsThatAreRefused(t *testing.T) {
	t.Parallel()
	gr := schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	for name, c := range map[string]struct {
		err  error
		says []string
	}{
		"forbidden": {apierrors.NewForbidden(gr, "", errors.New("no")), []string{"cannot write events"}},
		"invalid":   {apierrors.NewBadRequest("note: too long"), []string{"cannot write the event", "cannot write the event"}},
		"terminating": {&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "NamespaceTerminating"}}}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newEventRig(t)
			var attempts atomic.Int32
			b.answer = func() error {
				if attempts.Add(1) <= 2 {
					return c.err
				}
				return nil
			}
			b.run()
			b.report("one")
			b.report("two")
			b.report("three")
			require.Equal(t, "three", b.next().Note, "one that is refused does not hold up the next")
			var said []string
			for _, e := range b.logs.AllEntries() {
				said = append(said, e.Message)
			}
			require.Equal(t, c.says, said)
			if name == "forbidden" {
				require.Contains(t, b.logs.LastEntry().Data["error"].(error).Error(), "not allowed to create events")
			}
		})
	}
}
