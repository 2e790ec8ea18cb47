package manifest

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
)

// watch is a file notification for directories, or nothing at all: it is only there to be faster than polling, so no
// failure of it is more than a line in the log. It belongs to one goroutine.
type watch struct {
	log     *logrus.Entry
	watcher *fsnotify.Watcher // nil: not available
	dirs    map[string]inode
	warned  bool
}

func newWatch(log *logrus.Entry, newWatcher func() (*fsnotify.Watcher, error)) *watch {
	w := &watch{log: log, dirs: map[string]inode{}}
	var err error
	if w.watcher, err = newWatcher(); err != nil {
		w.watcher = nil
		w.warn(err)
	}
	return w
}

func (w *watch) warn(err error) {
	if !w.warned {
		w.warned = true
		w.log.WithError(err).Warn("no file notification, changes are noticed more slowly: " +
			"raise fs.inotify.max_user_instances and fs.inotify.max_user_watches")
	}
}

func (w *watch) close() {
	if w.watcher != nil {
		_ = w.watcher.Close()
	}
}

// events is nil, which blocks for ever, without notification.
func (w *watch) events() <-chan fsnotify.Event {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Events
}

func (w *watch) errors() <-chan error {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Errors
}

// visit makes sure that a directory is watched. It adds the watch each time: adding twice costs one system call, whereas
// nothing tells reliably whether the kernel has dropped the watch of a directory that was deleted and made again.
func (w *watch) visit(dir string, id inode) {
	if w.watcher == nil {
		return
	}
	if old, ok := w.dirs[dir]; ok && old != id {
		_ = w.watcher.Remove(dir) // of the directory that had the name before
	}
	if err := w.watcher.Add(dir); err != nil {
		delete(w.dirs, dir)
		if !errors.Is(err, fs.ErrNotExist) {
			w.warn(err)
		}
		return
	}
	w.dirs[dir] = id
}

// keep forgets the directories that are gone.
func (w *watch) keep(dirs map[string]inode) {
	for dir := range w.dirs {
		if _, ok := dirs[dir]; !ok {
			_ = w.watcher.Remove(dir)
			delete(w.dirs, dir)
		}
	}
}

// matters reports whether an event can have changed what the directory says. Anything may be a directory or a symlink, but
// writing into a file that is no manifest (somebody's log) cannot matter.
func matters(e fsnotify.Event) bool {
	name := filepath.Base(e.Name)
	return e.Op != fsnotify.Write || isManifest(name) || strings.HasPrefix(name, ".")
}
