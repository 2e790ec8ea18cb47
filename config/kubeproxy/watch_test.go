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

const patience = time.Minute

// watching is a watch under way.
type watching struct {
	t    *testing.T
	path string
	ctx  context.Context
	stop context.CancelFunc
	done chan error
}

func decodable(content []byte) error {
	_, _, err := Decode(content)
	return err
}

func startWatch(t *testing.T, path string, notified bool) *watching {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	logger, _ := logtest.NewNullLogger()
	w := &watch{path: path, loaded: content, usable: decodable, log: logrus.NewEntry(logger), poll: time.Hour, newWatcher: fsnotify.NewWatcher}
	if !notified {
		w.poll = 5 * time.Millisecond
		w.newWatcher = func() (*fsnotify.Watcher, error) { return nil, errors.New("no inotify") }
	}
	waiting := make(chan struct{}, 1)
	w.waits = func() {
		select {
		case waiting <- struct{}{}:
		default:
		}
	}
	r := &watching{t: t, path: path, done: make(chan error, 1)}
	r.ctx, r.stop = context.WithCancel(context.Background())
	t.Cleanup(r.stop)
	go func() { r.done <- w.run(r.ctx) }()
	select {
	case <-waiting: // from here on, only the watch can tell
	case <-time.After(patience):
		require.FailNow(t, "the watch does not begin")
	}
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
		"another symlink": {
			func(dir string) string {
				for _, d := range []string{"/old", "/link"} {
					require.NoError(t, os.Mkdir(dir+d, 0o755))
				}
				write(t, dir+"/old/c", before)
				require.NoError(t, os.Symlink("../old/c", dir+"/link/c"))
				return dir + "/link/c"
			},
			func(t *testing.T, dir string) {
				require.NoError(t, os.Mkdir(dir+"/new", 0o755))
				write(t, dir+"/new/c", after)
				require.NoError(t, os.Symlink("../new/c", dir+"/link/n"))
				require.NoError(t, os.Rename(dir+"/link/n", dir+"/link/c"))
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
	go func() {
		done <- Watch(t.Context(), path, []byte(header+"mode: userspace"), decodable, logrus.NewEntry(log))
	}()
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
	path := filepath.Join(t.TempDir(), "c")
	logger, hook := logtest.NewNullLogger()
	w := &watch{path: path, loaded: []byte(header), usable: decodable, log: logrus.NewEntry(logger)}
	expect := func(wantChanged, wantStable bool, when string) {
		t.Helper()
		changed, stable := w.look()
		assert.Equal(t, []bool{wantChanged, wantStable}, []bool{changed, stable}, when)
	}
	expect(false, false, "no file")
	write(t, path, header)
	expect(false, false, "the same content")
	write(t, path, "kind: Nonsense")
	expect(true, false, "first look at nonsense")
	expect(false, false, "second look: it is refused")
	expect(false, false, "and no longer news")
	require.Len(t, hook.AllEntries(), 1, "said once")
	assert.Contains(t, hook.LastEntry().Message, "cannot be used")
	write(t, path, header+"mode: user")
	expect(true, false, "half written")
	write(t, path, header+"mode: userspace")
	expect(true, false, "still being written")
	write(t, path, header)
	expect(false, false, "as it was")
	write(t, path, header+"mode: userspace")
	expect(true, false, "once more")
	expect(true, true, "left alone")
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
