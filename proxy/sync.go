package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"redial/balancer"
	"redial/config"
	"redial/proxy/intercept"
)

// step is one run of the runner: a sync, or a look at the rules when nothing asked for one.
func (p *Proxier) step(ctx context.Context, asked bool) error {
	if !asked {
		intact, err := p.cfg.Interceptor.Verify(ctx)
		if err != nil {
			p.log.WithError(err).Log(p.unlessSaid(&p.checkError, err, logrus.WarnLevel), "cannot check the rules, trying again")
			return nil
		}
		if p.checkError != "" {
			p.log.Info("the rules can be checked again")
			p.checkError = ""
		}
		if intact {
			return nil
		}
		p.log.Warn("what steers is not as it was written: it was changed by somebody else, or the node's addresses are others; writing it again")
		p.mu.Lock()
		defer p.mu.Unlock()
		p.sync.Repairs++
		p.full = true
		// As a run of its own: what repairing costs must not put off the next look.
		p.ask()
		return nil
	}
	start := time.Now()
	full, err := p.reconcile(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sync.Syncs++
	p.sync.Last, p.sync.Took = start, time.Since(start)
	if p.cfg.Observer != nil {
		p.cfg.Observer.Synced(p.sync.Took, full, err)
	}
	p.full = p.full || err != nil
	if err == nil {
		p.sync.LastSuccess = time.Now()
		if p.sync.Error != "" {
			p.log.Info("syncs succeed again")
			p.sync.Error = ""
		}
	} else {
		p.sync.Failures++
		level := p.unlessSaid(&p.sync.Error, err, logrus.ErrorLevel)
		if ctx.Err() == nil {
			p.log.WithError(err).Log(level, "sync failed, trying again")
		}
	}
	for name := range union(p.problems, p.logged) { // those of the objects were logged as they came
		p.logProblems(name)
	}
	// A Service's own problem is tried again too: a port or an address may have become free.
	if err == nil && p.retryable() {
		return errors.New("some Services are not served")
	}
	return err
}

// unlessSaid returns the level to log err at, and remembers it: debug if it is what was said last, since what fails for
// hours is tried again every few seconds, and at each change.
func (p *Proxier) unlessSaid(last *string, err error, level logrus.Level) logrus.Level {
	if *last == err.Error() {
		return logrus.DebugLevel
	}
	*last = err.Error()
	return level
}

// reconcile makes the world as wanted: make first, then steer, then break. full tells that it went through all Services.
func (p *Proxier) reconcile(ctx context.Context) (full bool, err error) {
	p.mu.Lock()
	p.pickUp()
	scope := p.scope()
	var plan plan
	if scope != nil {
		var alone bool
		if plan, alone = p.planFor(scope); !alone {
			scope = nil
		}
	}
	full = scope == nil
	if full {
		plan = p.planOf(p.wanted)
	}
	p.mu.Unlock()
	if full {
		if err := p.cfg.Interceptor.Prepare(ctx, plan.vips()); err != nil {
			return full, fmt.Errorf("preparing: %w", err)
		}
	}
	p.mu.Lock()
	if full {
		p.yield(&plan)
	}
	p.openMissing(&plan)
	p.route(&plan)
	want := p.state(&plan, scope)
	p.mu.Unlock()

	err = p.cfg.Interceptor.Commit(ctx, want)
	failed, fatal := bindingErrors(err)

	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range failed {
		if name, found := plan.owners[e.Binding.VIP]; found {
			plan.problems.add(name, ReasonSteeringFailed, "%s: %v", e.Binding.VIP, e.Err)
			plan.refused(e.Binding.VIP)
		} else {
			p.full = true // it was in force before
			p.ask()
		}
	}
	for name, list := range p.problems {
		if _, found := scope[name]; !full && !found {
			plan.problems[name] = list
		}
	}
	p.problems = plan.problems
	if fatal != nil {
		// The old rules may be in force, so what they point to stays.
		return full, fatal
	}
	p.inForce = want.Bindings
	if full {
		p.unroute(&plan)
	} else {
		p.unrouteSome(&plan, scope)
	}
	for key := range p.keys(&plan, scope) {
		p.settle(key, &plan)
	}
	if full {
		p.owners = plan.owners
	} else {
		p.adopt(&plan, scope)
	}
	p.written()
	return full, nil
}

func (p *Proxier) planOf(some services) plan {
	plan := buildPlan(some, p.owners)
	p.confine(&plan)
	return plan
}

func (p *Proxier) confine(plan *plan) {
	plan.confine(p.interceptLimits(), p.restrictedNodePorts())
}

// yield closes listeners on VIPs that another frontend is to have: both cannot listen there at once.
func (p *Proxier) yield(plan *plan) {
	type place struct {
		protocol config.Protocol
		addr     netip.AddrPort
	}
	heirs := map[place]frontendKey{}
	for key, vips := range plan.frontends {
		f := p.frontends[key]
		if f == nil {
			f = &frontend{}
		}
		for _, addr := range p.listenAddrs(f, vips) {
			if proxyPort := f.shared == nil && addr.Port() == f.port; !proxyPort && !f.sharesAt(addr) {
				heirs[place{key.name.Protocol, addr}] = key
			}
		}
	}
	for key, f := range p.frontends {
		kept := slices.DeleteFunc(f.addrs(), func(addr netip.AddrPort) bool {
			heir, wanted := heirs[place{key.name.Protocol, addr}]
			return wanted && heir != key
		})
		p.left(key.name, f.keep(kept))
	}
}

// mostLines is how many frontends are logged one by one when they are opened together, as at the start.
const mostLines = 50

// openMissing opens the frontends that the plan has and that do not exist, or are broken. What cannot be opened becomes a
// problem and leaves the plan.
func (p *Proxier) openMissing(plan *plan) {
	missing := 0
	for key := range plan.frontends {
		if _, ok := p.frontends[key]; !ok {
			missing++
		}
	}
	p.level = logrus.InfoLevel
	if missing > mostLines {
		p.level = logrus.DebugLevel
		p.log.WithField("frontends", missing).Info("opening frontends")
	}
	for _, key := range plan.keys() {
		port := p.servicePort(key.name)
		if port == nil {
			continue // gone since the plan was made: the next sync, already asked for, removes it
		}
		if err := p.open(key, port, plan.frontends[key]); err != nil {
			plan.problems.add(key.name, ReasonListenFailed, "%v", err)
		}
	}
}

func (p *Proxier) open(key frontendKey, port *config.ServicePort, vips []vip) error {
	f, exists := p.frontends[key]
	if exists && f.broken == nil {
		p.guard(f, vips)
		err := p.listen(f, vips)
		if err == nil || !portTaken(err) || !p.needsPort(vips) {
			return err
		}
		f.broken = err
	}
	b := balancer.New(p.cfg.Prober)
	if exists {
		p.discard(f)
		b = f.balancer
	} else {
		b.Watch(p.ejections.of(key))
	}
	fresh, err := p.openAnywhere(key, port, vips, b)
	if fresh == nil {
		b.Close()
		p.retired = p.retired.Add(b.Counters())
		return err
	}
	p.frontends[key] = fresh
	if p.log.Logger.IsLevelEnabled(p.level) {
		p.log.WithFields(key.fields()).WithFields(logrus.Fields{"port": fresh.port, "backends": b.Len()}).Log(p.level, "frontend opened")
	}
	return err
}

// openAnywhere opens a frontend on its preferred port, or the next free one, or one that it shares. Where the Interceptor has it listen on the VIPs
// themselves, it has no proxy port; those that can be listened at then do, and the error tells of the others.
func (p *Proxier) openAnywhere(key frontendKey, port *config.ServicePort, vips []vip, b *balancer.Balancer) (*frontend, error) {
	if !p.needsPort(vips) {
		f := &frontend{key: key, name: key.name.String(), balancer: b, scheduler: p.cfg.Scheduler}
		f.update(port, p.limitOf(port), p.node, p.log)
		if p.shares(key) {
			_ = p.share(f, vips) // what cannot share has a listener of its own as long as there may be more
		}
		err := p.listen(f, vips)
		if len(f.listeners) == 0 {
			return nil, err
		}
		return f, err
	}
	if !p.shares(key) {
		for number := range p.ports.candidates(key) {
			f, err := p.openAt(key, port, vips, b, number, nil)
			if err == nil {
				p.ports.take(key, number)
				return f, nil
			}
			if !portTaken(err) {
				return nil, err
			}
			p.log.WithFields(logrus.Fields{"service": key.name, "port": number}).WithError(err).Info("proxy port in use, trying the next")
		}
		if !p.mayShare(key) {
			return nil, p.noPort()
		}
		p.sharing.full[key.family] = true
	}
	shared, err := p.sharedListener(key, vips)
	if err != nil {
		return nil, err
	}
	return p.openAt(key, port, vips, b, shared.Addr().Port(), shared)
}

// openAt opens a frontend on one proxy port.
func (p *Proxier) openAt(key frontendKey, port *config.ServicePort, vips []vip, b *balancer.Balancer, number uint16, shared *sharedPort) (*frontend, error) {
	f := &frontend{key: key, name: key.name.String(), port: number, shared: shared, balancer: b, scheduler: p.cfg.Scheduler}
	f.update(port, p.limitOf(port), p.node, p.log)
	p.guard(f, vips)
	if err := p.listen(f, vips); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// needsPort reports whether the Interceptor wants a listener on the proxy port.
func (p *Proxier) needsPort(vips []vip) bool {
	return slices.ContainsFunc(vips, func(v vip) bool { return !p.listensOn(v.VIP) })
}

// discard closes a broken frontend. Its live connections go on.
func (p *Proxier) discard(f *frontend) {
	p.left(f.key.name, f.close())
	if f.shared == nil {
		p.ports.release(f.key, f.port)
		delete(p.sharing.full, f.key.family)
	}
	delete(p.frontends, f.key)
}

// listenAddrs are the distinct addresses at which f is to listen for the VIPs.
func (p *Proxier) listenAddrs(f *frontend, vips []vip) []netip.AddrPort {
	var addrs []netip.AddrPort
	for _, v := range vips {
		if a := p.listenAddr(f, v.VIP); !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// settle follows a successful sync: it closes what nothing is steered to any more.
func (p *Proxier) settle(key frontendKey, plan *plan) {
	f := p.frontends[key]
	vips, wanted := plan.frontends[key]
	if !wanted {
		p.discard(f)
		f.balancer.Close()
		p.retired = p.retired.Add(f.balancer.Counters())
		p.log.WithFields(key.fields()).WithField("port", f.port).Info("frontend closed")
		return
	}
	addrs := p.listenAddrs(f, vips)
	p.left(key.name, f.keep(addrs))
	if f.vips = vips; len(f.listeners) < len(addrs) {
		f.vips = slices.DeleteFunc(slices.Clone(vips), func(v vip) bool {
			_, listens := p.listener(key, v)
			return !listens
		})
	}
	f.settle(p.log)
	f.unguard()
}

func (p *plan) keys() []frontendKey {
	if p.sorted == nil {
		p.sorted = slices.AppendSeq(make([]frontendKey, 0, len(p.frontends)), maps.Keys(p.frontends))
		slices.SortFunc(p.sorted, frontendKey.compare)
	}
	return p.sorted
}

func (p *plan) vips() []intercept.VIP {
	vips := slices.AppendSeq(make([]intercept.VIP, 0, len(p.owners)), maps.Keys(p.owners))
	slices.SortFunc(vips, compareVIPs)
	return vips
}

func compareVIPs(a, b intercept.VIP) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
}

// refused takes a VIP that could not be steered out of the plan, so that another Service may have it next time.
func (p *plan) refused(v intercept.VIP) {
	for key, vips := range p.frontends {
		if key.name == p.owners[v] {
			p.frontends[key] = slices.DeleteFunc(vips, func(o vip) bool { return o.VIP == v })
		}
	}
	delete(p.owners, v)
}

// bindingErrors separates what concerns single bindings from what concerns the whole Commit.
func bindingErrors(err error) (single []*intercept.BindingError, fatal error) {
	switch joined := err.(type) {
	case nil:
		return nil, nil
	case interface{ Unwrap() []error }:
		for _, e := range joined.Unwrap() {
			s, f := bindingErrors(e)
			single, fatal = append(single, s...), errors.Join(fatal, f)
		}
		return single, fatal
	}
	var be *intercept.BindingError
	if errors.As(err, &be) {
		return []*intercept.BindingError{be}, nil
	}
	return nil, err
}
