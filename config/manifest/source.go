package manifest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"

	"redial/config"
)

// Problem is something that is wrong with the directory now.
type Problem struct {
	// File is the path, beginning with the directory given to New.
	File string `json:"file"`
	// Document counts from 1; 0 means the whole file.
	Document int `json:"document,omitempty"`
	// Object is "Service default/web", or empty where not even that could be read.
	Object string `json:"object,omitempty"`
	// Message names the field and says what is wrong with it.
	Message string `json:"message"`
	// Retained tells that what was there before is still in force.
	Retained bool `json:"retained,omitempty"`
}

// Source hands the objects of a directory to a Tracker. Create it with New; it does nothing until Run.
type Source struct {
	dir     string
	tracker *config.Tracker
	log     *logrus.Entry
	// newWatcher is fsnotify.NewWatcher, except in tests of a system that has run out of them.
	newWatcher func() (*fsnotify.Watcher, error)
	// poll is minPoll, except in tests that cannot wait or want to see nothing but notifications.
	poll time.Duration
	// looks counts the scans.
	looks atomic.Uint64

	// What follows belongs to the goroutine of Run.

	files   map[string]*file
	applied map[key]origin
	// settled: the last scan finished, and found nothing that could change by itself. Then there is nothing to do until some
	// file is seen to have changed.
	settled bool
	// walked is how long it took last to look at all names, without reading what has changed.
	walked time.Duration

	mu       sync.Mutex
	problems []Problem // sorted; replaced, never modified
}

// New returns the source for a directory. It starts nothing and reads nothing.
func New(dir string, t *config.Tracker, log *logrus.Entry) *Source {
	return &Source{
		dir:        dir,
		tracker:    t,
		log:        log.WithField("dir", dir),
		newWatcher: fsnotify.NewWatcher,
		poll:       minPoll,
		files:      map[string]*file{},
		applied:    map[key]origin{},
	}
}

// Problems returns what is wrong now, by file and document. It may be called from any goroutine.
func (s *Source) Problems() []Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.problems)
}

const (
	// settle is how long a file has to be left alone before it is read: editors truncate, write and rename.
	settle = 75 * time.Millisecond
	// patience is how long a stream of events can put off a scan.
	patience = 500 * time.Millisecond
	// minPoll is how often the directory is looked at without an event, or less often where that takes more than a
	// hundredth of the time.
	minPoll = time.Second
)

// Run reads the directory, reports Services and endpoints as delivered, and follows the directory until ctx ends. It may
// be called once. It returns an error only if the directory cannot be read to begin with; a directory that goes away later
// leaves everything as it was until it is back.
func (s *Source) Run(ctx context.Context) error {
	w := newWatch(s.log, s.newWatcher)
	defer w.close()

	began := time.Now()
	if _, err := s.scan(ctx, w, true); err != nil {
		return fmt.Errorf("reading manifests: %w: create the directory, make it readable, or name another one", err)
	}
	if ctx.Err() != nil {
		return nil
	}
	s.tracker.ServicesDelivered()
	s.tracker.EndpointsDelivered()
	s.log.WithFields(logrus.Fields{"files": len(s.files), "objects": len(s.applied), "took": time.Since(began).String()}).
		Info("manifests read")

	timer := time.NewTimer(s.pollAfter())
	defer timer.Stop()
	var firstEvent time.Time // of those not yet answered by a scan
	var release func()       // not nil while a scan is to be continued
	defer func() {
		if release != nil {
			release()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-w.events():
			if !matters(event) {
				continue
			}
		case err := <-w.errors():
			// Most likely more events than the queue holds: some are lost, so look at everything.
			s.log.WithError(err).Warn("file notification failed, reading the directory again")
		case <-timer.C:
			// What is edited together takes effect together: an endpoint moved between slices is never in neither.
			if release == nil {
				release = s.tracker.Hold()
			}
			again, err := s.scan(ctx, w, false)
			if err != nil {
				s.lost(err)
			}
			if again {
				timer.Reset(settle)
				continue
			}
			release()
			release, firstEvent = nil, time.Time{}
			timer.Reset(s.pollAfter())
			continue
		}
		if firstEvent.IsZero() {
			firstEvent = time.Now()
		}
		timer.Reset(scanAfter(time.Since(firstEvent), s.walked))
	}
}

// scanAfter is how long after an event to look, if the first event not yet answered is so long ago: once it is quiet, but
// soon even if it never is, and without spending more than half the time on looking.
func scanAfter(sinceFirst, walked time.Duration) time.Duration {
	return max(min(settle, patience-sinceFirst), walked, 0)
}

func (s *Source) pollAfter() time.Duration { return max(s.poll, 100*s.walked) }

// lost reports that the directory itself cannot be read any more.
func (s *Source) lost(err error) {
	whole := Problem{File: s.dir, Message: err.Error(), Retained: true}
	now := slices.DeleteFunc(s.Problems(), func(p Problem) bool { return p.File == s.dir })
	s.report(append(now, whole))
}

// report publishes the problems and logs those that appeared and those that are gone.
func (s *Source) report(now []Problem) {
	slices.SortStableFunc(now, compareProblems)
	before := s.Problems()
	gone := make(map[Problem]struct{}, len(before))
	for _, p := range before {
		gone[p] = struct{}{}
	}
	for _, p := range now {
		if _, ok := gone[p]; ok {
			delete(gone, p)
			continue
		}
		s.entry(p).Warn("manifest has a problem")
	}
	for _, p := range before {
		if _, ok := gone[p]; ok {
			s.entry(p).Info("manifest problem is resolved")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems = now
}

func (s *Source) entry(p Problem) *logrus.Entry {
	fields := logrus.Fields{"file": p.File, "problem": p.Message, "retained": p.Retained}
	if p.Document > 0 {
		fields["document"] = p.Document
	}
	if p.Object != "" {
		fields["object"] = p.Object
	}
	return s.log.WithFields(fields)
}
