package kube

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/sirupsen/logrus"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"

	"redial/config"
)

// EventsConfig says how problems become events. Client, NodeName and Log are needed.
type EventsConfig struct {
	// Client should not be the one of the Source: the two would share a limit of requests.
	Client kubernetes.Interface
	// NodeName is who reports.
	NodeName string
	// UID is usually [Source.UID]; kubectl describe shows only events that have it. It must not block. nil means that nobody
	// knows any.
	UID func(config.ServiceName) types.UID
	Log *logrus.Entry

	clock clock.PassiveClock // nil means the real one
	retry time.Duration      // how long after an outage was noticed to try again; 0 means 30 s
}

// Events writes the problems of Services as events of type Warning on the Service. Create it with NewEvents; nothing is
// written until Run.
//
// It does not use client-go's broadcaster, whose aggregation goes by the reason alone (of two problems with the same reason
// the second would never be read), and whose goroutines outlive it. Here one problem is one event, and it is written again
// only when the API server has forgotten the first.
type Events struct {
	cfg     EventsConfig
	limiter flowcontrol.RateLimiter
	queued  chan struct{}
	refused bool // and said; it belongs to Run

	mu      sync.Mutex
	queue   []report
	written map[report]time.Time
	dropped int
}

// report is a problem of one Service: another one of the same name, with another UID, has its own.
type report struct {
	service config.ServiceName
	uid     types.UID
	problem config.Problem
}

const (
	// eventTTL is how long an API server keeps an event by default (--event-ttl).
	eventTTL = time.Hour
	// maxQueued bounds the memory; what does not fit is in the log and the status still.
	maxQueued = 1000
	// eventsPerSecond and eventsBurst: every node of a cluster may have the same to say.
	eventsPerSecond, eventsBurst = 1, 25
	// maxNote and maxReason are what the API server accepts, in bytes.
	maxNote, maxReason = 1024, 128
)

// NewEvents returns a writer of events. It starts nothing.
func NewEvents(cfg EventsConfig) *Events {
	if cfg.clock == nil {
		cfg.clock = clock.RealClock{}
	}
	cfg.retry = cmp.Or(cfg.retry, 30*time.Second)
	return &Events{
		cfg:     cfg,
		limiter: flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventsBurst),
		queued:  make(chan struct{}, 1),
		written: map[report]time.Time{},
	}
}

// Report has a problem of a Service written. It never blocks, and may be called from any goroutine, again and again for
// the same problem.
func (e *Events) Report(service config.ServiceName, p config.Problem) {
	r := report{service: service, problem: p}
	if e.cfg.UID != nil {
		r.uid = e.cfg.UID(service)
	}
	now := e.cfg.clock.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if at, ok := e.written[r]; ok && now.Sub(at) < eventTTL {
		return
	}
	if len(e.queue) >= maxQueued {
		if e.dropped++; e.dropped == 1 {
			e.cfg.Log.WithField("queued", len(e.queue)).
				Warn("more problems than can be written as events: the rest is in the log and the status only")
		}
		return
	}
	e.written[r] = now
	e.queue = append(e.queue, r)
	select {
	case e.queued <- struct{}{}:
	default:
	}
}

// Run writes events until ctx ends, and returns nil then. It may be called once.
func (e *Events) Run(ctx context.Context) error {
	for {
		r, ok := e.next()
		if !ok {
			select {
			case <-ctx.Done():
				return nil
			case <-e.queued:
			}
			continue
		}
		for e.limiter.Wait(ctx) == nil && !e.write(ctx, r) {
			select {
			case <-ctx.Done():
			case <-time.After(e.cfg.retry):
			}
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

func (e *Events) next() (report, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) == 0 {
		e.queue = nil
		e.forget()
		return report{}, false
	}
	r := e.queue[0]
	e.queue = e.queue[1:]
	return r, true
}

// forget needs e.mu. It drops what would be written again anyway.
func (e *Events) forget() {
	now := e.cfg.clock.Now()
	for r, at := range e.written {
		if now.Sub(at) >= eventTTL {
			delete(e.written, r)
		}
	}
	e.dropped = 0
}

// write makes one attempt. What it reports as not delivered is worth another.
func (e *Events) write(ctx context.Context, r report) (delivered bool) {
	_, err := e.cfg.Client.EventsV1().Events(r.service.Namespace).Create(ctx, e.event(r), metav1.CreateOptions{})
	if err == nil {
		e.refused = false
		return true
	}
	log := e.cfg.Log.WithField("service", r.service)
	answer := apierrors.APIStatus(nil)
	switch {
	case ctx.Err() != nil:
	case apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause), apierrors.IsNotFound(err):
		// The namespace is going, and the Service with it.
	case needsOwner(err):
		if !e.refused {
			log.WithError(explain("create", "events", err)).Warn("cannot write events")
		}
		e.refused = true
	case !errors.As(err, &answer), apierrors.IsTooManyRequests(err), apierrors.IsServerTimeout(err), apierrors.IsServiceUnavailable(err):
		log.WithError(err).Debug("cannot write events now")
		return false
	default:
		log.WithError(err).WithField("problem", r.problem.Message).Warn("cannot write the event")
	}
	return true
}

func (e *Events) event(r report) *eventsv1.Event {
	now := e.cfg.clock.Now()
	note := r.problem.Message
	if r.problem.Port != "" {
		note = "port " + r.problem.Port + ": " + note
	}
	// Another node, or this proxy started again, must not find its name taken.
	sum := sha256.Sum256([]byte(e.cfg.NodeName + "\x00" + note + "\x00" + now.String()))
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: r.service.Namespace, Name: r.service.Name + "." + hex.EncodeToString(sum[:8])},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: "redial",
		ReportingInstance:   clip("redial-"+e.cfg.NodeName, maxReason),
		Type:                v1.EventTypeWarning,
		Reason:              clip(cmp.Or(r.problem.Reason, "Problem"), maxReason),
		Action:              "Serve",
		Note:                clip(note, maxNote),
		Regarding: v1.ObjectReference{
			Kind: "Service", APIVersion: "v1", Namespace: r.service.Namespace, Name: r.service.Name, UID: r.uid,
		},
	}
}

// clip cuts s to n bytes of valid UTF-8.
func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= n {
		return s
	}
	const more = "..."
	n -= len(more)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + more
}
