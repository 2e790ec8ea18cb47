package proxy

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"

	"redial/proxy/intercept"
)

// What fails for hours is tried again every few seconds, and at each change: that is one line, and one when it is over.
func TestOutageOfRulesIsSaidOnce(t *testing.T) {
	var out bytes.Buffer // guarded by the logger's lock, and read when nothing runs
	log := logrus.New()
	log.SetOutput(&out)
	t.Run("serve", func(t *testing.T) {
		g := start(t, testPorts, func(c *Config) { c.Log = logrus.NewEntry(log) })
		g.tracker.SetService(object("web", "198.18.0.1"))
		g.endpoints("web", "http", backend(t, "a"))
		g.served("web", "http")

		g.rec.failWith(func([]intercept.Binding) error { return errors.New("the lock is held") })
		g.tracker.SetService(object("web", "198.18.0.2"))
		g.eventually(func() bool { return g.SyncStatus().Failures >= 3 }, "more than one failure")
		assert.Equal(t, "the lock is held", g.SyncStatus().Error)
		g.rec.failWith(func([]intercept.Binding) error { return errors.New("no program") })
		failures := g.SyncStatus().Failures
		g.eventually(func() bool { return g.SyncStatus().Failures >= failures+3 }, "another failure")
		g.rec.failWith(nil)
		g.eventually(func() bool { return g.SyncStatus().Error == "" }, "success")

		var looks atomic.Int32
		look := func(f func() error) {
			g.rec.mu.Lock()
			defer g.rec.mu.Unlock()
			g.rec.looks = f
		}
		look(func() error { looks.Add(1); return errors.New("nothing to look with") })
		g.eventually(func() bool { return looks.Load() >= 3 }, "more than one look")
		look(nil)
		g.eventually(func() bool {
			g.rec.mu.Lock()
			defer g.rec.mu.Unlock()
			return g.rec.intact >= 2
		}, "a look that is well")
	})
	for line, want := range map[string]int{
		"the lock is held": 1, "no program": 1, "syncs succeed again": 1,
		"nothing to look with": 1, "the rules can be checked again": 1,
	} {
		assert.Equal(t, want, strings.Count(out.String(), line), "%s in\n%s", line, &out)
	}
}
