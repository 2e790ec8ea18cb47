package manifest

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"

	"redial/config"
)

// bed is a directory that is being followed, and what the Tracker has made of it.
type bed struct {
	t       *testing.T
	dir     string
	tracker *config.Tracker
	source  *Source
	logs    *test.Hook
	state   map[string]*config.Service
	stop    func()
}

// follow starts a Source on a directory with the files given as path, content, path, content. It does not poll, so that
// what is noticed is noticed by notification.
func follow(t *testing.T, files ...string) *bed {
	t.Helper()
	b := newBed(t, files...)
	b.start(func(s *Source) { s.poll = time.Hour })
	return b
}

// followPolling starts a Source that polls often.
func followPolling(t *testing.T, files ...string) *bed {
	t.Helper()
	b := newBed(t, files...)
	b.start(fastPoll)
	return b
}

func fastPoll(s *Source) { s.poll = 50 * time.Millisecond }

func newBed(t *testing.T, files ...string) *bed {
	t.Helper()
	t.Parallel()
	b := &bed{t: t, dir: filepath.Join(t.TempDir(), "manifests")}
	require.NoError(t, os.Mkdir(b.dir, 0o755))
	for i := 0; i < len(files); i += 2 {
		b.write(files[i], files[i+1])
	}
	return b
}

func (b *bed) start(change ...func(*Source)) {
	b.t.Helper()
	b.tracker, b.state = config.NewTracker(config.Options{}), map[string]*config.Service{}
	log, hook := test.NewNullLogger()
	log.SetOutput(io.Discard)
	b.logs = hook
	b.source = New(b.dir, b.tracker, logrus.NewEntry(log))
	for _, c := range change {
		c(b.source)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- b.source.Run(ctx) }()
	b.stop = func() {
		cancel()
		require.NoError(b.t, <-done)
	}
	b.t.Cleanup(cancel)
	select {
	case <-b.tracker.Changed():
	case err := <-done:
		b.t.Fatalf("Run ended: %v", err)
	case <-time.After(time.Minute):
		b.t.Fatal("nothing was delivered")
	}
	b.take()
}

func (b *bed) take() {
	for name, svc := range b.tracker.Take() {
		if svc == nil {
			delete(b.state, name.String())
		} else {
			b.state[name.String()] = svc
		}
	}
}

// names waits until exactly these Services exist.
func (b *bed) names(want ...string) {
	b.t.Helper()
	slices.Sort(want)
	b.until(func() bool {
		var got []string
		for name := range b.state {
			got = append(got, name)
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	}, "want the Services %v, have %v", want, b.state)
}

// until waits for a fact about b.state or the problems.
func (b *bed) until(fact func() bool, msg string, args ...any) {
	b.t.Helper()
	deadline := time.After(time.Minute)
	for b.take(); !fact(); b.take() {
		select {
		case <-b.tracker.Changed():
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			b.t.Fatalf("%s\nproblems: %v", fmt.Sprintf(msg, args...), b.source.Problems())
		}
	}
}

func (b *bed) clusterIP(name, ip string) {
	b.t.Helper()
	b.until(func() bool {
		s := b.state[name]
		return s != nil && len(s.Ports) > 0 && s.Ports[0].ClusterIPs[0].String() == ip
	}, "want %s at %s", name, ip)
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bed) write(name, content string) {
	b.t.Helper()
	require.NoError(b.t, os.MkdirAll(filepath.Dir(b.path(name)), 0o755))
	require.NoError(b.t, os.WriteFile(b.path(name), []byte(content), 0o644))
}

func (b *bed) remove(name string) {
	b.t.Helper()
	require.NoError(b.t, os.RemoveAll(b.path(name)))
}

// logged counts the log lines with a message about a file.
func (b *bed) logged(message, file string) int {
	n := 0
	for _, e := range b.logs.AllEntries() {
		if e.Message == message && (file == "" || e.Data["file"] == b.path(file)) {
			n++
		}
	}
	return n
}

// service is a manifest.
func service(name, ip string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\nspec:\n  clusterIP: %s\n  ports:\n  - name: http\n    port: 80\n", name, ip)
}

func slice(name, svc, ip string) string {
	return fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: %s\n  labels: {kubernetes.io/service-name: %s}\naddressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints: [{addresses: [%s]}]\n", name, svc, ip)
}
