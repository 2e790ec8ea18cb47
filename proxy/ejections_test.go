package proxy

import (
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/balancer"
	"redial/config"
)

// A backend that refuses is ejected, which is logged with why, shown, counted, and still counted when the Service is gone.
func TestEjectionsAreSeen(t *testing.T) {
	logger, hook := logtest.NewNullLogger()
	g := start(t, testPorts, func(c *Config) { c.Log = logrus.NewEntry(logger) })
	l, err := net.Listen("tcp", "127.77.0.1:0") // where no client has its port
	require.NoError(t, err)
	gone := l.Addr().(*net.TCPAddr).AddrPort()
	l.Close()
	g.tracker.SetService(object("web", "198.18.0.1"))
	g.endpoints("web", "http", backend(t, "a"), gone)
	f := g.served("web", "http")
	ejection := func() *EjectionStatus {
		f, _ = g.frontend("web", "http")
		for _, b := range f.Backends {
			if b.Address == gone.String() {
				return b.Ejection
			}
		}
		return nil
	}
	g.eventually(func() bool { g.answers(f, "a"); return ejection() != nil }, "the ejection")
	e := ejection()
	assert.Contains(t, e.Error, "refused")
	assert.False(t, e.Since.IsZero())
	assert.True(t, e.Until.After(e.Since))
	assert.Equal(t, 1, g.Summary(false).Services[0].Ejected)
	assert.Positive(t, f.Balancer.Ejections)
	assert.Equal(t, "rr", f.Scheduler)

	line := func(message string) (found *logrus.Entry) {
		for _, entry := range hook.AllEntries() {
			if entry.Message == message {
				found = entry
			}
		}
		return found
	}
	entry := line("backend ejected: it gets no connections until it answers a test")
	require.NotNil(t, entry)
	assert.Equal(t, logrus.InfoLevel, entry.Level)
	assert.Equal(t, gone, entry.Data["backend"])
	assert.Equal(t, "1 of 2", entry.Data["ejected"])
	assert.Equal(t, "default/web:http/TCP", entry.Data["service"].(config.ServicePortName).String())
	assert.ErrorContains(t, entry.Data["error"].(error), "refused")

	l, err = net.Listen("tcp", gone.String())
	require.NoError(t, err)
	defer l.Close()
	go serve(l, "back")
	g.eventually(func() bool { _, err := ask(f.address()); return err == nil && ejection() == nil }, "its return")
	g.eventually(func() bool { return line("backend is back") != nil }, "the line about it")

	g.tracker.DeleteService(config.ServiceName{Namespace: "default", Name: "web"})
	g.eventually(func() bool { return len(g.Summary(false).Services) == 0 && g.Summary(false).Serving == 0 }, "the Service to be gone")
	assert.GreaterOrEqual(t, g.Summary(false).Balancer.Ejections, f.Balancer.Ejections)
}

// When a node dies, the log tells of some and says that there are more.
func TestEjectionLinesAreBounded(t *testing.T) {
	t.Parallel()
	logger, hook := logtest.NewNullLogger()
	l := ejectionLog{log: logrus.NewEntry(logger), began: time.Now().Add(time.Hour)} // however long it takes
	report := l.of(frontendKey{})
	var running sync.WaitGroup
	for range 10 {
		running.Go(func() {
			for range 100 {
				report(balancer.Ejection{Since: time.Now(), Until: time.Now()})
			}
		})
	}
	running.Wait()
	require.Len(t, hook.AllEntries(), ejectionLines+1)
	more := 0
	for _, e := range hook.AllEntries() {
		if strings.Contains(e.Message, "see redial status") {
			more++
		}
	}
	assert.Equal(t, 1, more)
	l.began = time.Time{}
	report(balancer.Ejection{Back: true})
	assert.Equal(t, "backend is back", hook.LastEntry().Message)
}
