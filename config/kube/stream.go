package kube

import (
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// stream is a watch that cannot be silent for ever. One that streams a list first ends, if the list does not, with an
// error that has the reflector fetch it.
type stream struct {
	feed   *feed
	in     watch.Interface
	cancel func()
	out    chan watch.Event
	done   chan struct{}
	stop   func()
	// listing: the end of the streamed list is not yet here. resumed: it is one since a known version.
	listing, resumed bool
}

func newStream(f *feed, in watch.Interface, cancel func(), listing, resumed bool) *stream {
	s := &stream{feed: f, in: in, cancel: cancel, listing: listing, resumed: resumed,
		out: make(chan watch.Event), done: make(chan struct{})}
	s.stop = sync.OnceFunc(func() { close(s.done) })
	f.streams.Go(s.relay)
	return s
}

// ResultChan implements [watch.Interface].
func (s *stream) ResultChan() <-chan watch.Event { return s.out }

// Stop implements [watch.Interface]. It may be called more than once.
func (s *stream) Stop() { s.stop() }

// relay hands the events on. It ends with the stream, by Stop, or when the silence is too long.
func (s *stream) relay() {
	defer close(s.out)
	defer s.cancel()
	defer s.in.Stop()
	timer := time.NewTimer(s.patience())
	defer timer.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-timer.C:
			if s.listing {
				s.feed.giveUpStreaming()
				s.send(failure("the server has not ended the list it was asked to stream"))
			}
			// Otherwise the reflector watches again from the version it has seen last.
			s.feed.log.Debug("the watch is silent, opening another")
			return
		case e, ok := <-s.in.ResultChan():
			if !ok {
				if s.listing {
					s.send(failure("the watch ended before the list it was to begin with"))
				}
				return
			}
			if !s.send(s.examine(e)) {
				return
			}
			timer.Reset(s.patience())
		}
	}
}

func (s *stream) patience() time.Duration {
	if s.listing {
		return s.feed.limits.initial
	}
	return s.feed.limits.silence
}

func (s *stream) send(e watch.Event) (sent bool) {
	select {
	case s.out <- e:
		return true
	case <-s.done:
		return false
	}
}

// examine records what an event means for the progress.
func (s *stream) examine(e watch.Event) watch.Event {
	switch e.Type {
	case watch.Error:
		err := apierrors.FromObject(e.Object)
		if s.listing && (!expired(err) || !s.resumed) {
			// As in feed.WatchWithContext: the reflector must not wait or go round for these.
			return failure(err.Error())
		}
	case watch.Bookmark:
		if o, err := meta.Accessor(e.Object); err == nil && s.listing && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			s.listing = false
			s.feed.resource.follows()
		}
		s.feed.resource.seen()
	default:
		s.feed.resource.seen()
	}
	return e
}

// failure is an error event that the reflector takes for nothing it knows.
func failure(why string) watch.Event {
	return watch.Event{Type: watch.Error, Object: &metav1.Status{Status: metav1.StatusFailure, Message: fmt.Sprintf("%s: %s", errNotStreamed, why)}}
}

// giveUpStreaming has lists fetched from now on. A server that ignores what it does not know (before Kubernetes 1.27, or
// one that is none) opens the watch and never marks the list's end.
func (f *feed) giveUpStreaming() {
	if !f.noWatchList.Swap(true) {
		f.log.WithField("waited", f.limits.initial.String()).
			Warn("the API server does not end the list it was asked to stream: fetching lists from now on; set " +
				"KUBE_FEATURE_WatchListClient=false in the environment to do so from the start")
	}
}
