package kubeproxy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const patience = 20 * time.Second

// watching runs a watch with notification only, or without any.
type watching struct {
	t    *testing.T
	path string
	ctx  context.Context
	stop context.CancelFunc
	done chan error
	log  *logtest.Hook
	// ready is closed when the directories are watched, and the first look is done.
	started chan struct{}
}

func startWatch(t *testing.T, path string, notified bool) *watching {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	logger, hook := logtest.NewNullLogger()
	w := &watch{path: path, loaded: content, log: logrus.NewEntry(logger), poll: time.Hour, newWatcher: fsnotify.NewWatcher}
	if !notified {
		w.poll = 5 * time.Millisecond
		w.newWatcher = func() (*fsnotify.Watcher, error) { return nil, errors.New("no inotify") }
	}
	r := &watching{t: t, path: path, done: make(chan error, 1), log: hook}
	r.ctx, r.stop = context.WithCancel(context.Background())
	t.Cleanup(r.stop)
	go func() { r.done <- w.run(r.ctx) }()
	return r
}

func (r *watching) awaitChanged() {
	r.t.Helper()
	select {
	case err := <-r.done:
		assert.ErrorIs(r.t, err, ErrChanged)
	case <-time.After(patience):
		require.FailNow(r.t, "the change went unnoticed")
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
}

func TestWatchNoticesEveryWayOfChanging(t *testing.T) {
	t.Parallel()
	const before, after = header + "mode: userspace\n", header + "mode: \"\"\n"
	for name, test := range map[string]struct {
		path   func(dir string) string
		change func(t *testing.T, dir string)
	}{
		"written": {
			func(dir string) string { write(t, dir+"/c", before); return dir + "/c" },
			func(t *testing.T, dir string) { write(t, dir+"/c", after) },
		},
		"renamed over": {
			func(dir string) string { write(t, dir+"/c", before); return dir + "/c" },
			func(t *testing.T, dir string) {
				write(t, dir+"/new", after)
				require.NoError(t, os.Rename(dir+"/new", dir+"/c"))
			},
		},
		"gone and back": {
			func(dir string) string { write(t, dir+"/c", before); return dir + "/c" },
			func(t *testing.T, dir string) {
				require.NoError(t, os.Remove(dir+"/c"))
				write(t, dir+"/c", after)
			},
		},
		"ConfigMap": {
			func(dir string) string {
				require.NoError(t, os.Mkdir(dir+"/..1", 0o755))
				write(t, dir+"/..1/c", before)
				require.NoError(t, os.Symlink("..1", dir+"/..data"))
				require.NoError(t, os.Symlink("..data/c", dir+"/c"))
				return dir + "/c"
			},
			func(t *testing.T, dir string) {
				require.NoError(t, os.Mkdir(dir+"/..2", 0o755))
				write(t, dir+"/..2/c", after)
				require.NoError(t, os.Symlink("..2", dir+"/..new"))
				require.NoError(t, os.Rename(dir+"/..new", dir+"/..data"))
				require.NoError(t, os.RemoveAll(dir+"/..1"))
			},
		},
		"behind a symlink to elsewhere": {
			func(dir string) string {
				require.NoError(t, os.MkdirAll(dir+"/real", 0o755))
				require.NoError(t, os.MkdirAll(dir+"/link", 0o755))
				write(t, dir+"/real/c", before)
				require.NoError(t, os.Symlink("../real/c", dir+"/link/c"))
				return dir + "/link/c"
			},
			func(t *testing.T, dir string) { write(t, dir+"/real/c", after) },
		},
	} {
		for _, notified := range []bool{true, false} {
			label := name + ", notified"
			if !notified {
				label = name + ", polled"
			}
			t.Run(label, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				r := startWatch(t, test.path(dir), notified)
				test.change(t, dir)
				r.awaitChanged()
			})
		}
	}
}

// What was loaded counts, not what was there when the watch began.
func TestWatchComparesWithWhatWasLoaded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c")
	write(t, path, header)
	log, _ := logtest.NewNullLogger()
	done := make(chan error, 1)
	go func() { done <- Watch(t.Context(), path, []byte(header+"mode: userspace"), logrus.NewEntry(log)) }()
	select {
	case err := <-done:
		assert.ErrorIs(t, err, ErrChanged)
	case <-time.After(patience):
		require.FailNow(t, "the change went unnoticed")
	}
}

// Neither the same content written again nor content that would not start is a reason to end.
func TestWatchGoesOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "c")
	write(t, path, header)
	r := startWatch(t, path, true)
	write(t, path, header)
	write(t, dir+"/other", "x")
	write(t, path, "kind: Nonsense")
	assert.Eventually(t, func() bool { return r.log.LastEntry() != nil }, patience, time.Millisecond)
	assert.Contains(t, r.log.LastEntry().Message, "cannot be used")
	write(t, path, header)
	require.NoError(t, os.Remove(path))
	select {
	case err := <-r.done:
		require.FailNow(t, "the watch has ended", "%v", err)
	default:
	}
	write(t, path, header+"mode: userspace")
	r.awaitChanged()
	assert.Len(t, r.log.AllEntries(), 1, "said once")
}

func TestWatchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c")
	write(t, path, header)
	r := startWatch(t, path, false)
	r.stop()
	select {
	case err := <-r.done:
		assert.NoError(t, err)
	case <-time.After(patience):
		require.FailNow(t, "the watch does not end")
	}
}
