package proxy

import (
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"redial/balancer"
)

// A node that dies takes the backends of thousands of Services with it, so only so many lines are logged in a while.
const (
	ejectionLines = 50
	ejectionWhile = 10 * time.Second
)

// ejectionLog logs that backends are ejected and that they are back. It is called on the path of connections, so that it
// must not take long.
type ejectionLog struct {
	log *logrus.Entry

	mu    sync.Mutex // guards what follows; not held while logging
	began time.Time  // the present while
	lines int        // in it, those that were not logged included
}

// of returns what a frontend's balancer has to call.
func (l *ejectionLog) of(key frontendKey) func(balancer.Ejection) {
	return func(e balancer.Ejection) {
		line := l.line(time.Now())
		if line > ejectionLines {
			if line == ejectionLines+1 {
				l.log.WithField("for", ejectionWhile).Info("more backends are ejected, or back, than are logged: see redial status")
			}
			return
		}
		log := l.log.WithFields(key.fields()).WithError(e.Err).WithFields(logrus.Fields{
			"backend": e.Backend, "ejected": fmt.Sprintf("%d of %d", e.Ejected, e.Backends),
		})
		if e.Back {
			log.WithField("after", time.Since(e.Since).Round(time.Millisecond)).Info("backend is back")
		} else {
			log.WithField("for", time.Until(e.Until).Round(time.Millisecond)).Info("backend ejected: it gets no connections until it answers a test")
		}
	}
}

// line counts one more line and returns the count.
func (l *ejectionLog) line(now time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.began) >= ejectionWhile {
		l.began, l.lines = now, 0
	}
	l.lines++
	return l.lines
}
