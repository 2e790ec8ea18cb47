package proxy

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"redial/config"
	"redial/proxy/intercept"
	"redial/proxy/relay"
)

// Config is what a Proxier is made of. Tracker, Interceptor, Relay, Ports and Log are needed.
type Config struct {
	Tracker     *config.Tracker
	Interceptor intercept.Interceptor
	Relay       *relay.Relay
	// Ports are the proxy ports.
	Ports intercept.PortRange
	// MinSyncPeriod is the least time between two writes of rules. 0: 100ms.
	MinSyncPeriod time.Duration
	// SyncPeriod is how often the rules are checked when nothing changes. 0: 5s.
	SyncPeriod time.Duration
	Log        *logrus.Entry
}

// checkShare bounds the cost of looking after the rules to half a percent of one core.
const checkShare = 200

// Proxier keeps listeners and steering as the Tracker says.
type Proxier struct {
	cfg    Config
	log    *logrus.Entry
	runner runner

	mu        sync.Mutex // guards what follows; never held while rules are written
	wanted    services
	frontends map[frontendKey]*frontend
	ports     *allocator
	owners    owners
	problems  problems // of planning and syncing
	logged    problems // all, as they were logged last
	sync      SyncStatus
}

// New returns a Proxier that has done nothing yet.
func New(cfg Config) *Proxier {
	if cfg.MinSyncPeriod == 0 {
		cfg.MinSyncPeriod = 100 * time.Millisecond
	}
	if cfg.SyncPeriod == 0 {
		cfg.SyncPeriod = 5 * time.Second
	}
	p := &Proxier{
		cfg:       cfg,
		log:       cfg.Log,
		wanted:    services{},
		frontends: map[frontendKey]*frontend{},
		ports:     newAllocator(cfg.Ports),
		owners:    owners{},
		problems:  problems{},
		logged:    problems{},
	}
	p.runner = runner{
		run:      p.step,
		pause:    cfg.MinSyncPeriod,
		retry:    time.Second,
		retryMax: max(cfg.SyncPeriod, 10*time.Second),
		period:   cfg.SyncPeriod,
		share:    checkShare,
		wake:     make(chan struct{}, 1),
	}
	return p
}

// Run follows the Tracker until ctx ends. Then it returns nil; listeners, rules and connections stay, so that the caller
// can drain, and clients are served until the listeners close.
func (p *Proxier) Run(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { p.runner.loop(ctx) })
	for {
		select {
		case <-ctx.Done():
			running.Wait()
			return nil
		case <-p.cfg.Tracker.Changed():
			p.take(p.cfg.Tracker.Take())
		}
	}
}

// take applies what can be applied at once, and asks for a sync where that is not enough.
func (p *Proxier) take(changes config.Changes) {
	if changes == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	reshaped := p.sync.Syncs == 0 // the first sync also removes what an earlier run left
	for name, s := range changes {
		if !sameShape(p.wanted[name], s) {
			reshaped = true
		}
		if s == nil {
			delete(p.wanted, name)
		} else {
			p.wanted[name] = s
			if p.updateFrontends(s) {
				reshaped = true
			}
		}
		p.logProblems(name)
	}
	if reshaped {
		p.runner.ask()
	}
}

// updateFrontends hands new endpoints to the frontends of s that exist, and reports whether one has to be opened anew.
func (p *Proxier) updateFrontends(s *config.Service) (broken bool) {
	for i := range s.Ports {
		for _, family := range config.Families {
			if f, ok := p.frontends[frontendKey{s.Ports[i].Name, family}]; ok {
				f.update(&s.Ports[i], p.log)
				broken = broken || f.broken != nil
			}
		}
	}
	return broken
}

// servicePort returns the wanted port of a name; nil if there is none.
func (p *Proxier) servicePort(name config.ServicePortName) *config.ServicePort {
	s := p.wanted[name.Service]
	if s == nil {
		return nil
	}
	for i := range s.Ports {
		if s.Ports[i].Name == name {
			return &s.Ports[i]
		}
	}
	return nil
}
