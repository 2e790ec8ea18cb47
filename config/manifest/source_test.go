package manifest

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"redial/config"
)

func TestEverythingIsDeliveredAtOnce(t *testing.T) {
	var files []string
	for i := range 50 {
		name := fmt.Sprintf("svc-%d", i)
		files = append(files, "z/"+name+".yaml", service(name, fmt.Sprintf("10.0.0.%d", i+1)), "a/"+name+".yml", slice(name, name, "127.0.0.1"))
	}
	b := follow(t, files...)
	require.Len(t, b.state, 50, "the first change has everything")
	for _, s := range b.state {
		require.Len(t, s.Ports[0].Endpoints, 1)
		require.Empty(t, s.Problems)
	}
	require.Empty(t, b.source.Problems())
	b.stop()
}

func TestEmptyDirectory(t *testing.T) {
	b := follow(t, "README.md", "# not a manifest", "x.txt", "{", ".hidden.yaml", "oops")
	require.Empty(t, b.state)
	require.Empty(t, b.source.Problems())
	b.write("a.yaml", service("web", "10.0.0.1"))
	b.names("default/web")
	b.stop()
}

func TestRunNeedsADirectory(t *testing.T) {
	log := logrus.NewEntry(logrus.New())
	log.Logger.SetOutput(io.Discard)
	tracker := config.NewTracker(config.Options{})
	missing := filepath.Join(t.TempDir(), "none")
	err := New(missing, tracker, log).Run(t.Context())
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, missing)
	require.ErrorContains(t, err, "create the directory")

	file := filepath.Join(t.TempDir(), "a.yaml")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	require.ErrorIs(t, New(file, tracker, log).Run(t.Context()), syscall.ENOTDIR)
	require.Nil(t, tracker.Take(), "nothing was delivered")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, New(t.TempDir(), tracker, log).Run(ctx))
}

func TestFollow(t *testing.T) {
	b := follow(t, "a.yaml", service("web", "10.0.0.1"))
	b.write("a.yaml", service("web", "10.0.0.2"))
	b.clusterIP("default/web", "10.0.0.2")

	b.write("deep/er/b.yaml", service("b", "10.0.0.3"))
	b.names("default/web", "default/b")
	b.write("deep/er/b.yaml", service("b", "10.0.0.4"))
	b.clusterIP("default/b", "10.0.0.4")

	// As most editors do.
	b.write("tmp", service("web", "10.0.0.5"))
	require.NoError(t, os.Rename(b.path("tmp"), b.path("a.yaml")))
	b.clusterIP("default/web", "10.0.0.5")

	b.write("c.json", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"c"},"spec":{"clusterIP":"10.0.0.6","ports":[{"port":80}]}}`)
	b.names("default/web", "default/b", "default/c")
	b.remove("deep")
	b.names("default/web", "default/c")
	b.write("a.yaml", "# moved\n")
	b.names("default/c")
	require.NoError(t, os.Rename(b.path("c.json"), b.path("c.json.off")))
	b.names()
	require.Empty(t, b.source.Problems())
	b.stop()
}

// What an editor has not finished is not looked at, however long it takes over it.
func TestUnfinishedFile(t *testing.T) {
	b := follow(t, "a.yaml", service("web", "10.0.0.1"), "b.yaml", service("b", "10.0.0.2"))
	whole := service("web", "10.0.0.9")
	for range 3 {
		f, err := os.Create(b.path("a.yaml"))
		require.NoError(t, err)
		for _, part := range []string{whole[:20], whole[20:60], whole[60:]} {
			_, err := f.WriteString(part)
			require.NoError(t, err)
			for range 5 {
				require.Empty(t, b.source.Problems())
				for name, svc := range b.tracker.Take() {
					require.NotNil(t, svc, "%s is gone", name)
				}
			}
		}
		require.NoError(t, f.Close())
	}
	b.clusterIP("default/web", "10.0.0.9")
	b.stop()
}

func TestScanAfter(t *testing.T) {
	require.Equal(t, settle, scanAfter(0, 0))
	require.Equal(t, settle, scanAfter(patience-settle, 0))
	require.Equal(t, time.Millisecond, scanAfter(patience-time.Millisecond, 0))
	require.Zero(t, scanAfter(time.Hour, 0), "events without end do not put it off")
	require.Equal(t, time.Second, scanAfter(time.Hour, time.Second), "a large directory is not looked at without end")
}

// A file that is written without a pause keeps nothing else waiting.
func TestConstantWriting(t *testing.T) {
	b := follow(t, "a.yaml", service("web", "10.0.0.1"))
	ctx, cancel := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			_ = os.WriteFile(b.path("noise.yaml"), fmt.Appendf(nil, "# %d", i), 0o644)
		}
	})
	for i := range 3 {
		ip := fmt.Sprintf("10.0.0.%d", i+2)
		b.write("a.yaml", service("web", ip))
		b.clusterIP("default/web", ip)
	}
	cancel()
	writer.Wait()
	b.stop()
}

// Some editors move a file away before they write it anew.
func TestFileMovedAwayForAMoment(t *testing.T) {
	b := follow(t, "a.yaml", service("web", "10.0.0.1"))
	b.stop()
	past := time.Now().Add(-time.Hour) // or it would pass for being written
	require.NoError(t, os.Chtimes(b.path("a.yaml"), past, past))
	s := New(b.dir, b.tracker, discard())
	scan := func(wantAgain bool) {
		again, err := s.scan(t.Context(), newWatch(s.log, s.newWatcher), s.looks.Load() == 0)
		require.NoError(t, err)
		require.Equal(t, wantAgain, again)
	}
	scan(false)
	require.NoError(t, os.Rename(b.path("a.yaml"), b.path("a.yaml~")))
	scan(true)
	require.Empty(t, b.tracker.Take())
	require.NoError(t, os.Rename(b.path("a.yaml~"), b.path("a.yaml")))
	scan(false)
	require.Empty(t, b.tracker.Take())
	b.remove("a.yaml")
	scan(true)
	scan(false)
	b.names()
	scan(false)
	require.True(t, s.settled)
}

func TestProblems(t *testing.T) {
	good := service("a", "10.0.0.1") + "---\n" + service("b", "10.0.0.2")
	b := follow(t, "a.yaml", good, "z.yaml", service("z", "10.0.0.9"))

	b.write("a.yaml", strings.Replace(service("a", "10.0.0.3"), "ports", "prots", 1)+"---\n"+service("b", "10.0.0.4"))
	b.clusterIP("default/b", "10.0.0.4")
	want := []Problem{{b.path("a.yaml"), 1, "Service default/a", `unknown field "spec.prots"`, true}}
	b.until(func() bool { return len(b.source.Problems()) == 1 }, "")
	require.Equal(t, want, b.source.Problems())
	b.clusterIP("default/a", "10.0.0.1")

	// The same fault in another place is another problem; nothing is logged twice.
	b.write("z.yaml", service("z", "10.0.0.10"))
	b.clusterIP("default/z", "10.0.0.10")
	require.Equal(t, want, b.source.Problems())
	require.Equal(t, 1, b.logged("manifest has a problem", "a.yaml"))
	require.Equal(t, 0, b.logged("manifest problem is resolved", ""))

	b.write("a.yaml", good)
	b.clusterIP("default/b", "10.0.0.2")
	b.until(func() bool { return len(b.source.Problems()) == 0 }, "")
	require.Equal(t, 1, b.logged("manifest has a problem", ""))
	require.Equal(t, 1, b.logged("manifest problem is resolved", "a.yaml"))

	// Gone for good, although it was retained.
	b.write("a.yaml", strings.Replace(good, "ports", "prots", 1))
	b.until(func() bool { return len(b.source.Problems()) == 1 }, "")
	b.remove("a.yaml")
	b.names("default/z")
	b.until(func() bool { return len(b.source.Problems()) == 0 }, "")
	b.stop()
}

// A new object that is spoilt from the start has nothing to retain.
func TestSpoiltFromTheStart(t *testing.T) {
	b := follow(t, "a.yaml", strings.Replace(service("a", "10.0.0.1"), "port: 80", "port: x", 1), "b.yaml", service("b", "10.0.0.2"))
	b.names("default/b")
	require.Equal(t, []Problem{{b.path("a.yaml"), 1, "Service default/a", "spec.ports[0].port: string where a value of type int32 is wanted", false}}, b.source.Problems())
	b.stop()
}

// A document that cannot even be recognised may be any of those the file had.
func TestUnrecognisableDocument(t *testing.T) {
	b := follow(t, "a.yaml", service("a", "10.0.0.1")+"---\n"+service("b", "10.0.0.2")+"---\n"+service("c", "10.0.0.3"), "d.yaml", service("d", "10.0.0.4"))
	// a is spoilt beyond recognition, b is moved to another file and changed, c is changed.
	b.write("d.yaml", service("d", "10.0.0.4")+"---\n"+service("b", "10.0.0.12"))
	b.write("a.yaml", "spec: [\n---\n"+service("c", "10.0.0.13"))
	b.clusterIP("default/c", "10.0.0.13")
	b.clusterIP("default/b", "10.0.0.12")
	b.clusterIP("default/a", "10.0.0.1")
	b.names("default/a", "default/b", "default/c", "default/d")
	b.until(func() bool { return len(b.source.Problems()) == 1 }, "")
	p := b.source.Problems()[0]
	require.Equal(t, b.path("a.yaml"), p.File)
	require.Equal(t, 1, p.Document)
	require.Empty(t, p.Object)
	require.True(t, p.Retained)
	b.write("a.yaml", service("c", "10.0.0.13"))
	b.names("default/b", "default/c", "default/d")
	b.stop()
}

// The identity counts, not the file: a spoilt object that was moved to another file stays too.
func TestSpoiltWhileMoved(t *testing.T) {
	b := follow(t, "a.yaml", service("a", "10.0.0.1"))
	b.write("b.yaml", strings.Replace(service("a", "10.0.0.2"), "ports", "prots", 1))
	b.remove("a.yaml")
	b.until(func() bool { p := b.source.Problems(); return len(p) == 1 && p[0].Retained }, "")
	b.clusterIP("default/a", "10.0.0.1")
	b.write("b.yaml", service("a", "10.0.0.2"))
	b.clusterIP("default/a", "10.0.0.2")
	b.stop()
}

func TestDefinedTwice(t *testing.T) {
	b := follow(t, "b.yaml", service("x", "10.0.0.3")+"---\n"+service("web", "10.0.0.2"), "a.yaml", service("web", "10.0.0.1"))
	b.clusterIP("default/web", "10.0.0.1")
	require.Equal(t, []Problem{{b.path("b.yaml"), 2, "Service default/web",
		"defined already in " + b.path("a.yaml") + ", document 1: that definition is used", false}}, b.source.Problems())

	// A spoilt first definition does not hand over to the second.
	b.write("a.yaml", strings.Replace(service("web", "10.0.0.1"), "ports", "prots", 1))
	b.until(func() bool { return len(b.source.Problems()) == 2 }, "")
	b.clusterIP("default/web", "10.0.0.1")

	// The second, which was not read again, comes into force when the first goes.
	b.remove("a.yaml")
	b.clusterIP("default/web", "10.0.0.2")
	b.until(func() bool { return len(b.source.Problems()) == 0 }, "")
	b.write("a.yaml", service("web", "10.0.0.1"))
	b.clusterIP("default/web", "10.0.0.1")
	b.stop()
}

func TestUnreadable(t *testing.T) {
	b := follow(t, "a.yaml", service("a", "10.0.0.1"), "b.yaml", service("b", "10.0.0.2"), "sub/c.yaml", service("c", "10.0.0.3"))
	// Permissions do not stop root; a directory in place of the file, a dangling link and a pipe stop everybody.
	b.remove("a.yaml")
	require.NoError(t, syscall.Mkfifo(b.path("a.yaml"), 0o644))
	b.until(func() bool { return len(b.source.Problems()) == 1 }, "")
	require.Equal(t, []Problem{{b.path("a.yaml"), 0, "", "open " + b.path("a.yaml") + ": not a regular file", true}}, b.source.Problems())
	b.remove("a.yaml")
	require.NoError(t, os.Symlink("nowhere", b.path("a.yaml")))
	b.until(func() bool {
		p := b.source.Problems()
		return len(p) == 1 && strings.Contains(p[0].Message, "no such file") && p[0].Retained
	}, "")
	b.clusterIP("default/a", "10.0.0.1")

	// A directory that leads nowhere: what was in it stays.
	require.NoError(t, os.Rename(b.path("sub"), filepath.Join(b.dir, "..", "away")))
	require.NoError(t, os.Symlink("nowhere", b.path("sub")))
	require.NoError(t, os.Symlink("nowhere", b.path("README")))
	b.until(func() bool { return len(b.source.Problems()) == 2 }, "")
	require.Equal(t, b.path("sub"), b.source.Problems()[1].File)
	b.names("default/a", "default/b", "default/c")
	b.remove("sub")
	b.names("default/a", "default/b")
	b.remove("a.yaml")
	b.names("default/b")
	b.until(func() bool { return len(b.source.Problems()) == 0 }, "")
	b.stop()
}

func TestTooLargeAFile(t *testing.T) {
	b := follow(t, "a.yaml", service("a", "10.0.0.1"))
	require.NoError(t, os.Truncate(b.path("a.yaml"), maxFile+1))
	b.until(func() bool { p := b.source.Problems(); return len(p) == 1 && p[0].Retained }, "")
	require.Contains(t, b.source.Problems()[0].Message, "the file has more than")
	b.names("default/a")
	b.stop()
}

// The way the kubelet updates a mounted ConfigMap.
func TestConfigMapSwap(t *testing.T) {
	b := follow(t, "..1/a.yaml", service("web", "10.0.0.1"), "..2/a.yaml", service("web", "10.0.0.2"))
	require.Empty(t, b.state, "directories that start with a dot are not read")
	require.NoError(t, os.Symlink("..1", b.path("..data")))
	require.NoError(t, os.Symlink("..data/a.yaml", b.path("a.yaml")))
	b.clusterIP("default/web", "10.0.0.1")
	require.NoError(t, os.Symlink("..2", b.path("..tmp")))
	require.NoError(t, os.Rename(b.path("..tmp"), b.path("..data")))
	b.clusterIP("default/web", "10.0.0.2")
	b.remove("..1")
	require.Empty(t, b.source.Problems())
	b.stop()
}

func TestSymlinks(t *testing.T) {
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "o.yaml"), []byte(service("o", "10.0.0.1")), 0o644))
	b := followPolling(t, "sub/a.yaml", service("a", "10.0.0.2"))
	require.NoError(t, os.Symlink(outside, b.path("link")))
	require.NoError(t, os.Symlink("..", b.path("sub/cycle")))
	require.NoError(t, os.Symlink("sub", b.path("again")))
	require.NoError(t, os.Symlink("self", b.path("self")))
	b.names("default/a", "default/o")
	require.Empty(t, b.source.Problems(), "a directory with two names is read once")

	// A file behind a link: nothing in the directory changes when it does.
	target := filepath.Join(t.TempDir(), "f.yaml")
	require.NoError(t, os.WriteFile(target, []byte(service("f", "10.0.0.3")), 0o644))
	require.NoError(t, os.Symlink(target, b.path("f.yaml")))
	b.clusterIP("default/f", "10.0.0.3")
	require.NoError(t, os.WriteFile(target, []byte(service("f", "10.0.0.4")), 0o644))
	b.clusterIP("default/f", "10.0.0.4")
	b.stop()
}

func TestDirectoryVanishesAndReturns(t *testing.T) {
	b := followPolling(t, "a.yaml", service("a", "10.0.0.1"), "bad.yaml", "x: [")
	before := b.source.Problems()
	require.Len(t, before, 1)
	require.NoError(t, os.Rename(b.dir, b.dir+".old"))
	b.until(func() bool { return len(b.source.Problems()) == 2 }, "")
	p := b.source.Problems()[0]
	require.Equal(t, b.dir, p.File)
	require.True(t, p.Retained)
	b.names("default/a")
	// For more than one look at it, still one line.
	looks := b.source.looks.Load()
	require.Eventually(t, func() bool { return b.source.looks.Load() >= looks+2 }, time.Minute, 10*time.Millisecond)
	require.Equal(t, 2, b.logged("manifest has a problem", ""), "bad.yaml and the directory, once each")

	b.write("b.yaml", service("b", "10.0.0.2")) // makes the directory anew
	b.names("default/b")
	b.until(func() bool { return len(b.source.Problems()) == 0 }, "")
	b.write("b.yaml", service("b", "10.0.0.3"))
	b.clusterIP("default/b", "10.0.0.3")

	// Swapped without a moment of absence, and swapped again.
	require.NoError(t, os.Rename(b.dir, b.dir+".older"))
	require.NoError(t, os.Rename(b.dir+".old", b.dir))
	b.names("default/a")
	b.write("a.yaml", service("a", "10.0.0.7"))
	b.clusterIP("default/a", "10.0.0.7")
	b.stop()
}

func TestDirectoryReturnsUnchanged(t *testing.T) {
	b := followPolling(t, "a.yaml", service("a", "10.0.0.1"))
	past := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(b.path("a.yaml"), past, past))
	looks := b.source.looks.Load()
	b.until(func() bool { return b.source.looks.Load() > looks+3 }, "")
	require.NoError(t, os.Rename(b.dir, b.dir+".old"))
	b.until(func() bool { return len(b.source.Problems()) == 1 }, "")
	require.NoError(t, os.Rename(b.dir+".old", b.dir))
	b.until(func() bool { return len(b.source.Problems()) == 0 }, "the directory is back")
	b.names("default/a")
	b.stop()
}

func TestOtherKindsAreLoggedOnce(t *testing.T) {
	secret := "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"
	b := follow(t, "a.yaml", service("a", "10.0.0.1")+secret)
	require.Equal(t, 1, b.logged("object of another kind skipped", "a.yaml"))
	b.write("a.yaml", service("a", "10.0.0.2")+secret)
	b.clusterIP("default/a", "10.0.0.2")
	require.Equal(t, 1, b.logged("object of another kind skipped", "a.yaml"))
	b.write("a.yaml", service("a", "10.0.0.3")+secret+strings.Replace(secret, "Secret", "Pod", 1))
	b.clusterIP("default/a", "10.0.0.3")
	require.Equal(t, 2, b.logged("object of another kind skipped", "a.yaml"))
	require.Empty(t, b.source.Problems())
	b.stop()
}

// Without inotify everything works, only later.
func TestPolling(t *testing.T) {
	b := follow(t, "a.yaml", service("a", "10.0.0.1"))
	b.stop()
	b.start(func(s *Source) {
		fastPoll(s)
		s.newWatcher = func() (*fsnotify.Watcher, error) { return nil, syscall.EMFILE }
	})
	require.Equal(t, 1, b.logged("no file notification, changes are noticed more slowly: raise fs.inotify.max_user_instances and fs.inotify.max_user_watches", ""))
	b.write("a.yaml", service("a", "10.0.0.2"))
	b.write("sub/b.yaml", service("b", "10.0.0.3"))
	b.clusterIP("default/a", "10.0.0.2")
	b.names("default/a", "default/b")
	b.remove("sub")
	b.names("default/a")
	b.stop()
}

// An endpoint that moves from one slice to another, in one file or two, is always there.
func TestMovedEndpointIsNeverMissing(t *testing.T) {
	one := func(ip string) string { return slice("s1", "web", ip) }
	// Large, so that there is time to look between the one slice and the other.
	many := ""
	for i := range 1500 {
		many += fmt.Sprintf(", {addresses: [10.3.%d.%d]}", i/250, i%250+1)
	}
	two := func(ip string) string {
		return strings.Replace(slice("s2", "web", ip), "]}]\n", "]}"+many+"]\n", 1)
	}
	b := follow(t, "svc.yaml", service("web", "10.0.0.1"), "a.yaml", one("10.1.0.1")+"---\n"+two("10.1.0.2"))
	for i := range 4 {
		from, to := "10.1.0.1", "10.1.0.2"
		if i%2 == 0 {
			from, to = to, from
		}
		mark := fmt.Sprintf("10.2.0.%d", i+1)
		b.write("a.yaml", one(from)+"---\n"+two(to)+"---\n"+slice("mark", "web", mark))
		b.until(func() bool {
			eps := fmt.Sprint(b.state["default/web"].Ports[0].Endpoints)
			require.Contains(t, eps, "10.1.0.1:")
			require.Contains(t, eps, "10.1.0.2:")
			return strings.Contains(eps, mark+":")
		}, "")
	}
	b.stop()
}
