package kubeproxy

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
)

// ErrChanged is what [Watch] returns when the file says something else than before.
var ErrChanged = errors.New("the configuration file has changed")

const (
	// settle is for how long a file has to stay the same before it counts: editors truncate, write and rename.
	settle = 100 * time.Millisecond
	// poll is how often the file is looked at without notification, which network file systems do not give.
	poll = 10 * time.Second
)

// Watch waits until the content of a file is no longer what was loaded from it, and returns [ErrChanged]; or until ctx
// ends, and returns nil. It does not matter how it changed: written, renamed over, or swapped by a symlink as the kubelet
// does for ConfigMaps. A file that is gone or for which usable has an error is left for later, since whoever starts again
// with it would not serve at all.
func Watch(ctx context.Context, path string, loaded []byte, usable func([]byte) error, log *logrus.Entry) error {
	w := &watch{path: path, loaded: loaded, usable: usable, log: log.WithField("file", path), poll: poll, newWatcher: fsnotify.NewWatcher}
	return w.run(ctx)
}

// watch belongs to one goroutine.
type watch struct {
	path       string
	loaded     []byte
	candidate  []byte // other content that was there at the last look
	refused    []byte // other content that cannot be used
	usable     func([]byte) error
	log        *logrus.Entry
	poll       time.Duration
	newWatcher func() (*fsnotify.Watcher, error)
	waits      func() // for tests: the directories are watched, and nothing has changed before that; nil: nothing
}

func (w *watch) run(ctx context.Context) error {
	watcher, err := w.newWatcher()
	var events chan fsnotify.Event // nil, which blocks for ever, without notification
	var failures chan error
	if err != nil {
		w.log.WithError(err).Warn("no file notification, a change of the configuration is noticed more slowly: " +
			"raise fs.inotify.max_user_instances")
		watcher = nil
	} else {
		defer watcher.Close()
		events, failures = watcher.Events, watcher.Errors
	}
	tick := time.NewTicker(w.poll)
	defer tick.Stop()
	again := time.NewTimer(settle)
	defer again.Stop()
	for waiting := true; ; {
		w.follow(watcher)
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
			waiting = false
			changed, stable := w.look()
			if changed && stable {
				return ErrChanged
			}
			if changed {
				again.Reset(settle)
				waiting = true
			} else if w.waits != nil {
				w.waits()
			}
			continue
		case <-events:
		case <-failures: // an overflow: something has happened
		case <-tick.C:
		}
		if !waiting {
			again.Reset(settle)
			waiting = true
		}
	}
}

// look compares the file with what was loaded. Other content is stable once it is the same at two looks.
func (w *watch) look() (changed, stable bool) {
	content, err := os.ReadFile(w.path)
	if err != nil || bytes.Equal(content, w.loaded) {
		w.candidate = nil
		return false, false
	}
	if w.refused != nil && bytes.Equal(content, w.refused) {
		return false, false
	}
	if w.candidate == nil || !bytes.Equal(content, w.candidate) {
		w.candidate = content
		return true, false
	}
	if err := w.usable(content); err != nil {
		w.log.WithError(err).Error("the configuration file has changed, but cannot be used: going on with what it said before")
		w.candidate, w.refused = nil, content
		return false, false
	}
	return true, true
}

// follow watches the directories that the file's name leads through. A directory that was replaced has to be watched anew,
// and adding one twice costs a system call.
func (w *watch) follow(watcher *fsnotify.Watcher) {
	if watcher == nil {
		return
	}
	_ = watcher.Add(filepath.Dir(w.path))
	if target, err := filepath.EvalSymlinks(w.path); err == nil {
		_ = watcher.Add(filepath.Dir(target))
	}
}
