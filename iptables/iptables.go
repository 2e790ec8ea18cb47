package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"redial/proxy/intercept"
)

// Config says how to write rules. Its zero value works, but guards neither against loops nor the proxy ports.
type Config struct {
	// Mode is the kernel interface to use; "" means ModeAuto.
	Mode Mode
	// Target is how rules hand packets to the proxy; "" means TargetAuto.
	Target Target
	// Mark holds the SO_MARK bits that the proxy sets on its own connections to backends: the rules let these alone. 0
	// means no such guard, and a backend that is also a VIP makes the proxy call itself until it is out of files.
	Mark uint32
	// ProxyPorts are the ports that the proxy listens on: they are refused to whoever did not come through a rule. The
	// zero value means none, and then the filter table is touched only while something is to be dropped. They must not
	// include port 9, which stands for that.
	ProxyPorts intercept.PortRange
	// LockWait is how long to wait for the lock that iptables programs share, in whole seconds; 0 means 30 s. Waiting
	// longer than others is what keeps them from starving us.
	LockWait time.Duration
	// Log gets choices, repairs and what is left out; nil means the standard logger.
	Log *logrus.Entry
}

// Rules steers traffic with iptables rules. Make one with New.
type Rules struct {
	cfg      Config
	mode     Mode
	families []*family // IPv4 first; only those that the host has programs for
	absent   map[bool]error
	others   []*family // the same in the mode that is not used
	tidied   bool      // others hold nothing of ours any more
	network  func(v6 bool) (network, error)

	flows        flowTable
	tidiedFlows  map[bool]*intercept.State // by family (true: IPv6): what flows were last held against; its bindings are UDP's
	flowsErr     map[bool]error            // why that failed; nil: it did not
	flowsRemoved map[bool]uint

	// settled is the state that is in force to the last binding; nil: unknown, or not all of it.
	settled *intercept.State
	pods    []intercept.PodSource // of the last Commit

	mu    sync.Mutex // guards stats; never held across an exec
	stats Stats
}

var _ intercept.Interceptor = (*Rules)(nil)

// New finds out which iptables programs and which mode to use, and whether the kernel has a nat table for them. It
// writes no rules. It fails if neither family can be steered; the message says what to do.
func New(cfg Config) (*Rules, error) {
	return newRules(context.Background(), cfg, newHost(programs{}))
}

func newRules(ctx context.Context, cfg Config, h host) (*Rules, error) {
	if cfg.Log == nil {
		cfg.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	if cfg.LockWait <= 0 {
		cfg.LockWait = 30 * time.Second
	}
	switch cfg.Target {
	case "", TargetAuto, TargetRedirect, TargetDNAT:
	default:
		return nil, fmt.Errorf("iptables target %q: want %s, %s or %s", cfg.Target, TargetAuto, TargetRedirect, TargetDNAT)
	}
	r := &Rules{
		cfg: cfg, network: h.network, flows: h.flows,
		tidiedFlows: map[bool]*intercept.State{}, flowsErr: map[bool]error{}, flowsRemoved: map[bool]uint{},
	}
	if err := r.choose(ctx, h); err != nil {
		return nil, err
	}
	r.publish()
	return r, nil
}

// Prepare does nothing: the proxy listens on wildcard addresses, which need no preparation.
func (r *Rules) Prepare(context.Context, []intercept.VIP) error { return nil }

// BindAddr returns port on the wildcard address of v's family, where both REDIRECT and DNAT deliver.
func (r *Rules) BindAddr(v intercept.VIP, port uint16) netip.AddrPort {
	return wildcard(v.Addr.Is6(), port)
}

func wildcard(v6 bool, port uint16) netip.AddrPort {
	if v6 {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), port)
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), port)
}

func (f *family) wildcard(port uint16) netip.AddrPort { return wildcard(f.v6, port) }

// reference is a VIP whose rule no kernel has a reason to refuse (RFC 5737, RFC 3849).
func (f *family) reference() intercept.VIP {
	if f.v6 {
		return intercept.VIP{Addr: netip.MustParseAddr("2001:db8::1"), Port: 9, Protocol: intercept.TCP}
	}
	return intercept.VIP{Addr: netip.MustParseAddr("192.0.2.1"), Port: 9, Protocol: intercept.TCP}
}

// Commit implements intercept.Interceptor. A family that failed as a whole does not hold up the other.
func (r *Rules) Commit(ctx context.Context, want intercept.State) error {
	if r.settled != nil && r.settled.Equal(want) {
		// Not even rendered: this is the way of every event that concerns something else.
		if ok, err := r.Verify(ctx); ok && err == nil {
			return nil
		}
	}
	r.settled = nil
	defer r.publish()
	valid, errs := sift(want.Bindings)
	r.reportPods(want.Pods)
	for _, v6 := range []bool{false, true} {
		if err := r.absent[v6]; err != nil {
			errs = append(errs, refuseAll(valid[v6], err)...)
		}
	}
	whole, guarded := true, true
	for _, f := range r.families {
		if f.broken != nil && len(valid[f.v6]) > 0 {
			f.broken = f.probe(ctx)
		}
		if f.broken != nil {
			errs = append(errs, refuseAll(valid[f.v6], f.broken)...)
			continue
		}
		target, err := r.target(f)
		if err == nil {
			f.ranged = only(valid[f.v6], func(b intercept.Binding) bool { return b.Sources != nil })
			f.node, err = f.addresses()
		}
		if err == nil {
			f.parting = slices.ContainsFunc(valid[f.v6], func(b intercept.Binding) bool { return b.Local != nowhere }) &&
				slices.ContainsFunc(podsOf(f.v6, want.Pods), byPrefix)
			f.outward, err = r.outward(f)
		}
		if err != nil {
			errs, whole = append(errs, err), false
			continue
		}
		if target != f.target {
			f.log.WithField("family", f.name()).WithField("target", describe(target)).Info("rules hand packets over differently from now on")
			f.target = target
		}
		writes := f.stats.Restores
		lay := layout{
			v6: f.v6, mark: r.cfg.Mark, ports: r.cfg.ProxyPorts, target: f.target,
			pods: podsOf(f.v6, want.Pods), outward: f.outward, node: f.node, nodePorts: newNodePorts(f.v6, want),
			healthChecks: want.HealthChecks,
		}
		failed := f.commit(ctx, valid[f.v6], lay)
		errs = append(errs, failed...)
		whole, guarded = whole && f.applied != nil, guarded && f.filterErr == nil
		if f.applied != nil {
			inForce := want
			inForce.Bindings = without(valid[f.v6], failed)
			r.tidyFlows(inForce, lay, f.stats.Restores != writes)
		}
	}
	if whole && !r.tidied {
		// Only now: until ours were in, these may have been what served.
		if err := r.tidy(ctx); err != nil {
			r.cfg.Log.WithError(err).Warn("rules of ours in the other iptables mode could not be removed; they may steer traffic to closed ports")
		} else {
			r.tidied = true
		}
	}
	if whole && guarded && len(errs) == 0 {
		settled := clone(want)
		r.settled = &settled
	}
	return errors.Join(errs...)
}

// without leaves out the bindings that errs are about.
func without(bindings []intercept.Binding, errs []error) []intercept.Binding {
	if len(errs) == 0 {
		return bindings
	}
	failed := map[intercept.VIP]bool{}
	for _, err := range errs {
		var be *intercept.BindingError
		if errors.As(err, &be) {
			failed[be.Binding.VIP] = true
		}
	}
	return only(bindings, func(b intercept.Binding) bool { return !failed[b.VIP] })
}

func refuseAll(bindings []intercept.Binding, err error) []error {
	var errs []error
	for _, b := range bindings {
		errs = append(errs, &intercept.BindingError{Binding: b, Err: err})
	}
	return errs
}

// target decides what rules of f translate to.
func (r *Rules) target(f *family) (netip.Addr, error) {
	if r.cfg.Target == TargetRedirect {
		return netip.Addr{}, nil
	}
	n, err := r.network(f.v6)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("choosing between REDIRECT and DNAT: %w", err)
	}
	return r.cfg.Target.translateTo(n, f.target), nil
}

// addresses reads the node's addresses, if rules depend on them.
func (f *family) addresses() ([]netip.Addr, error) {
	if len(f.ranged) == 0 {
		return nil, nil
	}
	addrs, err := localAddresses()
	if err != nil {
		return nil, fmt.Errorf("listing the node's addresses, of which source ranges may hold some: %w", err)
	}
	return addrs, nil
}

// moved reports whether the node's addresses are others than at the last Commit, for some source ranges.
func (f *family) moved() (bool, error) {
	now, err := f.addresses()
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(f.ranged, func(b intercept.Binding) bool {
		return slices.ContainsFunc(f.node, within(b.Sources)) != slices.ContainsFunc(now, within(b.Sources))
	}), nil
}

// outward returns the interface that pods of other nodes come in by; "" where no rule asks for it.
func (r *Rules) outward(f *family) (string, error) {
	if !f.parting {
		return "", nil
	}
	n, err := r.network(f.v6)
	if err != nil {
		return "", fmt.Errorf("finding the interface that leads to other nodes: %w", err)
	}
	return n.outward, nil
}

func describe(target netip.Addr) string {
	if target.IsValid() {
		return "DNAT to " + target.String()
	}
	return "REDIRECT"
}

// Verify implements intercept.Interceptor. It is false as well when an interface or address came or
// went that changes the rules.
func (r *Rules) Verify(ctx context.Context) (bool, error) {
	for _, f := range r.families {
		if f.broken != nil {
			continue
		}
		if r.flowsErr[f.v6] != nil {
			return false, nil
		}
		target, err := r.target(f)
		if err != nil {
			return false, err
		}
		if target != f.target {
			return false, nil
		}
		if moved, err := f.moved(); moved || err != nil {
			return false, err
		}
		if outward, err := r.outward(f); outward != f.outward || err != nil {
			return false, err
		}
		if ok, err := f.inForce(ctx); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}
