package proxy

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"redial/balancer"
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
	// NodePortAddresses are where NodePorts are open. The zero value means at all addresses of the node.
	NodePortAddresses NodePortAddresses
	// NoLocalhostNodePorts closes NodePorts at loopback addresses.
	NoLocalhostNodePorts bool
	// LocalPods tell the node's own pods.
	LocalPods LocalPods
	// HealthChecks answers healthCheckNodePorts. Nil: nobody does.
	HealthChecks HealthChecks
	// Scheduler is the one of Service ports that ask for none; "" means round robin.
	Scheduler balancer.Scheduler
	// Prober finds out whether backends that failed are back; nil means that clients' connections do.
	Prober *balancer.Prober
	// Report is called once for each problem when it appears. It must neither block nor call the Proxier. May be nil.
	Report func(config.ServiceName, config.Problem)
	// Observer may be nil.
	Observer Observer
	Log      *logrus.Entry
}

// checkShare bounds the cost of looking after the rules to a third of a percent of one core.
const checkShare = 300

// Proxier keeps listeners and steering as the Tracker says.
type Proxier struct {
	cfg       Config
	log       *logrus.Entry
	runner    runner
	ejections ejectionLog
	started   time.Time
	// checkError is why the rules could not be checked at the last look. It belongs to the runner.
	checkError string
	synced     chan struct{}
	// healthCheckRetry is how long after a failure health checks are tried again.
	healthCheckRetry time.Duration

	mu        sync.Mutex // guards what follows; never held while rules are written
	node      config.Node
	wanted    services
	frontends map[frontendKey]*frontend
	ports     *allocator
	sharing   sharing
	owners    owners
	problems  problems                                     // of planning and syncing
	logged    problems                                     // all, as they were logged last
	limits    map[config.ServicePortName]*relay.Limit      // of those that ask for one
	former    map[config.ServicePortName][]*relay.Listener // closed, and connections go on
	retired   balancer.Counters                            // of frontends that are no more
	sync      SyncStatus
	level     logrus.Level        // at which frontends are logged that are opened now
	closed    bool                // NodePorts are, for want of an address
	full      bool                // the next sync assumes nothing of what is in force
	amend     amendments          // what it is for otherwise
	inForce   []intercept.Binding // since the last successful sync, in order; not to be modified
	queued    pending             // since the last sync began
	syncing   pending             // from before

	checks        map[config.ServiceName]HealthCheck
	checksChanged bool     // since they were handed over
	checkProblems problems // of answering them
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
		ejections: ejectionLog{log: cfg.Log},
		started:   time.Now(),
		synced:    make(chan struct{}),

		healthCheckRetry: 5 * time.Second,

		full:      true,
		amend:     amendments{},
		checks:    map[config.ServiceName]HealthCheck{},
		wanted:    services{},
		frontends: map[frontendKey]*frontend{},
		limits:    map[config.ServicePortName]*relay.Limit{},
		former:    map[config.ServicePortName][]*relay.Listener{},
		sharing:   newSharing(&cfg),
		owners:    owners{},
		problems:  problems{},
		logged:    problems{},
	}
	p.ports = newAllocator(cfg.Ports, p.sharing.ports())
	p.runner = runner{
		run:      p.step,
		pause:    cfg.MinSyncPeriod,
		retry:    time.Second,
		retryMax: max(cfg.SyncPeriod, 10*time.Second),
		period:   cfg.SyncPeriod,
		share:    checkShare,
		wake:     make(chan struct{}, 1),
		hint:     make(chan struct{}, 1),
	}
	return p
}

// Run follows the Tracker until ctx ends. Then it returns nil; listeners, rules and connections stay, so that the caller
// can drain, and clients are served until the listeners close.
func (p *Proxier) Run(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { p.runner.loop(ctx) })
	// Load balancers are not invited before the first rules are there.
	synced := p.synced
	var retry <-chan time.Time
	for {
		again := false
		select {
		case <-ctx.Done():
			running.Wait()
			return nil
		case <-p.cfg.Tracker.Changed():
			p.delivered()
			p.take(p.cfg.Tracker.Take(), p.cfg.Tracker.Node())
		case <-synced:
			synced = nil
		case <-retry:
			again, retry = true, nil
		}
		if synced == nil && p.answerHealthChecks(again) && retry == nil {
			retry = time.After(p.healthCheckRetry)
		}
	}
}

// Look has it verified soon, rather than at the next period, that what was written is in force: something has happened that
// may have changed it. It may be called at any time and any rate, from any goroutine.
func (p *Proxier) Look() { p.runner.look() }

// Resync has everything written anew, as far as it differs: what the Interceptor makes of the same Services has changed. It
// may be called at any time, from any goroutine; before the Tracker has handed Services over it does nothing.
func (p *Proxier) Resync() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.sync.Queued.IsZero() {
		p.full = true
		p.ask()
	}
}

// delivered notes when the Tracker has everything for the first time.
func (p *Proxier) delivered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sync.Delivered.IsZero() {
		p.sync.Delivered = time.Now()
	}
}

// take applies what can be applied at once, and asks for a sync where that is not enough.
func (p *Proxier) take(changes config.Changes, node config.Node) {
	if changes == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	resync := p.sync.Syncs == 0 // the first sync also removes what an earlier run left
	if !p.node.Equal(node) {
		p.node = node
		resync, p.full = true, true // its addresses are where NodePorts are open
		for name, s := range p.wanted {
			p.updateFrontends(s)
			p.checkHealth(name, s)
		}
		p.checksChanged = p.checksChanged || len(p.checks) > 0 // they are answered at its addresses
	}
	for name, s := range changes {
		if p.takeService(name, s) {
			resync = true
		}
	}
	if resync {
		p.ask()
	}
}

// takeService takes one Service in, or out if it is nil, and reports whether that needs a sync.
func (p *Proxier) takeService(name config.ServiceName, s *config.Service) (resync bool) {
	old := p.wanted[name]
	resync = !sameShape(old, s)
	if s == nil {
		delete(p.wanted, name)
	} else {
		p.wanted[name] = s
		if p.updateFrontends(s) {
			resync = true
		}
	}
	if old != nil {
		for i := range old.Ports {
			if p.servicePort(old.Ports[i].Name) == nil {
				p.gone(&old.Ports[i])
			}
		}
	}
	if resync {
		p.amended(name, old)
	}
	p.observe(name, old, s, resync)
	p.checkHealth(name, s)
	p.logProblems(name)
	return resync
}

// updateFrontends hands new endpoints to the frontends of s that exist, and reports whether that needs a sync: one has to
// be opened anew, or begins or stops to drop clients, or to refuse them at a shared listener.
func (p *Proxier) updateFrontends(s *config.Service) (resync bool) {
	for i := range s.Ports {
		for key := range frontendKeys(s.Ports[i].Name) {
			if f, ok := p.frontends[key]; ok {
				flipped := f.update(&s.Ports[i], p.limitOf(&s.Ports[i]), p.node, p.log)
				resync = resync || flipped || f.broken != nil
			}
		}
		p.retainFormer(&s.Ports[i])
	}
	return resync
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
