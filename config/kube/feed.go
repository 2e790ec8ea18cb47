package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// limits are how long things may take. Zero fields mean the defaults.
type limits struct {
	// patience is how long nothing is said about what is waited for.
	patience time.Duration
	// list is how long one page of a list may take. An API server gives up on it after 60 s itself.
	list time.Duration
	// initial is how long a streamed list may be silent before the server is taken for one that streams none.
	initial time.Duration
	// silence is how long a watch may be, or take to open. Bookmarks are asked for, and an API server sends one a minute.
	silence time.Duration
	// backoff is between failed attempts. Its jitter keeps the nodes of a cluster apart when their API server comes back.
	backoff wait.Backoff
	// optional is between attempts at what the server does not have, or does not let us see, and we can do without.
	optional time.Duration
	// noWatchList has lists fetched rather than streamed.
	noWatchList bool
}

func (l limits) defaults() limits {
	for field, value := range map[*time.Duration]time.Duration{
		&l.patience: 10 * time.Second, &l.list: 90 * time.Second, &l.initial: 15 * time.Second, &l.silence: 3 * time.Minute,
		&l.optional: 10 * time.Minute,
	} {
		if *field == 0 {
			*field = value
		}
	}
	if l.backoff.Duration == 0 {
		l.backoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Cap: 10 * time.Second, Steps: 20, Jitter: 1}
	}
	return l
}

// backoffReset is how long after the first attempt the next failure counts as the first again.
const backoffReset = 2 * time.Minute

// until does something again and again, with back-off in between, until it reports done or ctx ends.
func (l limits) until(ctx context.Context, attempt func() (done bool)) {
	// The error is that ctx has ended.
	_ = l.backoff.DelayWithReset(clock.RealClock{}, backoffReset).Until(ctx, true, true,
		func(context.Context) (bool, error) { return attempt(), nil })
}

// feed lists and watches one resource for a reflector. Every outcome is recorded, since a reflector keeps part of them to
// itself; what a reflector would bear with for ever, it is spared.
type feed struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// labels and fields select the objects. tryFields is a field selector that servers may not know.
	labels, fields, tryFields string
	kind                      runtime.Object
	store                     cache.ReflectorStore
	resource                  *resource
	limits                    limits
	// forbidden is called when a list is refused for want of a right. It may be nil.
	forbidden func()
	log       *logrus.Entry
	// plain: tryFields was refused. noWatchList: lists are not streamed, or not any more.
	plain, noWatchList atomic.Bool
	// streams are the watches that have not ended.
	streams sync.WaitGroup
}

// run follows the resource until ctx ends.
func (f *feed) run(ctx context.Context) {
	defer f.streams.Wait()
	f.noWatchList.Store(f.noWatchList.Load() || f.limits.noWatchList)
	backoff := f.limits.backoff
	r := cache.NewReflectorWithOptions(f, f.kind, f.store, cache.ReflectorOptions{Name: f.resource.name, Backoff: &backoff})
	// Not Reflector.Run, which logs each failed attempt.
	f.limits.until(ctx, func() bool {
		if err := r.ListAndWatchWithContext(ctx); err != nil {
			f.log.WithError(err).Debug("watch ended, listing again")
		}
		return false
	})
}

// IsWatchListSemanticsUnSupported is asked by the reflector when it is made.
func (f *feed) IsWatchListSemanticsUnSupported() bool { return f.noWatchList.Load() }

// List implements [cache.ListerWatcher]. It is not called.
func (f *feed) List(o metav1.ListOptions) (runtime.Object, error) {
	return f.ListWithContext(context.Background(), o)
}

// Watch implements [cache.ListerWatcher]. It is not called.
func (f *feed) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return f.WatchWithContext(context.Background(), o)
}

// ListWithContext implements [cache.ListerWithContext].
func (f *feed) ListWithContext(parent context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	ctx, cancel := context.WithTimeoutCause(parent, f.limits.list, fmt.Errorf("no answer within %s", f.limits.list))
	defer cancel()
	list, err := ask(f, opts, func(o metav1.ListOptions) (runtime.Object, error) { return f.list(ctx, o) })
	if err == nil {
		f.resource.seen()
		return list, nil
	}
	if ctx.Err() != nil && parent.Err() == nil {
		err = context.Cause(ctx)
	}
	if parent.Err() == nil && !expired(err) {
		f.resource.failed("list", err)
		if f.forbidden != nil && apierrors.IsForbidden(err) {
			f.forbidden()
		}
	}
	return nil, err
}

// errNotStreamed has the reflector fetch the list.
var errNotStreamed = errors.New("the list is not streamed")

// WatchWithContext implements [cache.WatcherWithContext].
func (f *feed) WatchWithContext(parent context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	streamed := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	if streamed && f.noWatchList.Load() {
		return nil, errNotStreamed
	}
	silence := f.limits.silence
	if streamed {
		silence = f.limits.initial
	}
	ctx, cancel := context.WithCancelCause(parent)
	opening := time.AfterFunc(silence, func() { cancel(fmt.Errorf("no answer within %s", silence)) })
	w, err := ask(f, opts, func(o metav1.ListOptions) (watch.Interface, error) { return f.watch(ctx, o) })
	if !opening.Stop() && err == nil {
		w.Stop()
		err = context.Cause(ctx)
	}
	if err != nil {
		if parent.Err() == nil && ctx.Err() != nil {
			if err = context.Cause(ctx); streamed {
				f.giveUpStreaming() // some proxies hold the answer back until there is an event, which never comes then
			}
		}
		cancel(nil)
		switch {
		case parent.Err() != nil || expired(err) && opts.ResourceVersion != "":
			return nil, err
		case streamed:
			// The list that follows is what counts. For some errors the reflector would wait here, deaf to its context, or try
			// again at once and for ever: hide their kind.
			return nil, fmt.Errorf("%w: %v", errNotStreamed, err)
		case !expired(err):
			f.resource.failed("watch", err)
		}
		return nil, err
	}
	if !streamed {
		f.resource.follows()
	}
	return newStream(f, w, func() { cancel(nil) }, streamed, opts.ResourceVersion != ""), nil
}

// ask makes a request with the selectors. Servers before Kubernetes 1.32 answer 400 to a field selector by ClusterIP: what
// works without was refused because of it.
func ask[T any](f *feed, opts metav1.ListOptions, request func(metav1.ListOptions) (T, error)) (T, error) {
	opts.LabelSelector, opts.FieldSelector = f.labels, f.fields
	if f.tryFields == "" || f.plain.Load() {
		return request(opts)
	}
	with := opts
	with.FieldSelector = f.tryFields
	out, err := request(with)
	if !apierrors.IsBadRequest(err) {
		return out, err
	}
	without, second := request(opts)
	if second != nil {
		return out, err
	}
	if !f.plain.Swap(true) {
		f.log.WithField("selector", f.tryFields).Info("this API server does not know the field selector: going on without, " +
			"which means more objects to read and no other difference")
	}
	return without, nil
}

// expired is the answer to a resource version that the server no longer has; listing anew is the cure, and no outage.
func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }
