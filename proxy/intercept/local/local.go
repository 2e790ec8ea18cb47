package local

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"

	"redial/proxy/intercept"
)

// Config says which ranges are virtual. Its zero value works: each VIP is then made local for itself.
type Config struct {
	// ServiceCIDRs returns the ranges that ClusterIPs are from, which are made local as a whole. It is called by every
	// Prepare, Commit and Verify and may answer differently each time. Nil means that none is known.
	ServiceCIDRs func() []netip.Prefix
	// Log gets choices and what is left out; nil means the standard logger.
	Log *logrus.Entry
}

// Routes makes VIPs local by routes. Make one with New.
type Routes struct {
	cfg      Config
	families []*family // IPv4 first
	watch    *watch
	shared   shared
	close    func() // of what families use; nil: nothing

	mu    sync.Mutex // guards stats; never held across a system call
	stats Stats
}

var (
	_ intercept.Interceptor = (*Routes)(nil)
	_ intercept.Limited     = (*Routes)(nil)
	_ intercept.Sharer      = (*Routes)(nil)
)

// New finds out whether routes can be written, by writing one to a table that nothing looks at. It fails if neither
// family works; the message says what to do. Likewise it finds out whether VIPs can share listeners, which is no condition.
// It leaves nothing behind.
func New(cfg Config) (*Routes, error) {
	k, err := newKernel()
	if err != nil {
		return nil, err
	}
	r, err := newRoutes(cfg, k)
	if err != nil {
		k.h.Close()
		return nil, err
	}
	r.close = k.h.Close
	if r.shared.unable = probeLookup(); r.shared.unable != nil {
		r.cfg.Log.WithField("reason", r.shared.unable).Info("Service ports cannot share listeners here: there can be as many as file descriptors allow")
	}
	return r, nil
}

func newRoutes(cfg Config, k routing) (*Routes, error) {
	if cfg.Log == nil {
		cfg.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	r := &Routes{cfg: cfg, shared: shared{unable: errNotProbed, slots: map[netip.AddrPort]uint32{}}}
	var failures []error
	for _, v6 := range []bool{false, true} {
		f := &family{v6: v6, kernel: k, log: cfg.Log.WithField("family", familyName(v6)), dubious: map[netip.Prefix]string{}, shared: map[netip.AddrPort]uint32{}}
		f.broken = f.probe()
		failures = append(failures, f.broken)
		r.families = append(r.families, f)
	}
	if r.families[0].broken != nil && r.families[1].broken != nil {
		return nil, fmt.Errorf("virtual addresses cannot be made local: run as root or with CAP_NET_ADMIN, or with "+
			"--interception=none: %w", errors.Join(failures...))
	}
	var err error
	if r.watch, err = newWatch(); err != nil {
		return nil, err
	}
	r.publish()
	return r, nil
}

// Close ends watching for changes of routes, and the sharing of listeners. The routes stay.
func (r *Routes) Close() error {
	if r.close != nil {
		r.close()
	}
	return errors.Join(r.shared.close(), r.watch.close())
}

// Limits implements intercept.Limited.
func (*Routes) Limits(bool) intercept.Limits {
	return intercept.Limits{ClientsAlike: true, OwnListeners: true, Refuses: true}
}

// Prepare makes VIPs local. One that cannot be is left to Commit to complain of. An address that was prepared and not
// committed is left alone from then on: what keeps its listener from being opened is most likely another process at that
// port, and clients would come to that one. ListenControl allows to listen without, and Commit then makes it local.
func (r *Routes) Prepare(ctx context.Context, vips []intercept.VIP) error {
	defer r.publish()
	return r.each(func(f *family) error {
		f.retry()
		if f.refused > 0 {
			f.stale = true // the kernel tells nobody of sysctls
		}
		addrs := slices.Clone(f.addrs)
		f.asked = nil
		for _, v := range vips {
			if !f.serves(v) {
				continue
			}
			f.asked = append(f.asked, v.Addr)
			if !f.barren[v.Addr] {
				addrs = append(addrs, v.Addr)
			}
		}
		if err := f.refresh(); err != nil {
			return err
		}
		f.add(addrs, r.cidrs())
		return ctx.Err()
	})
}

// Commit implements intercept.Interceptor.
func (r *Routes) Commit(ctx context.Context, want intercept.State) error {
	defer r.publish()
	var refused []error
	err := r.each(func(f *family) error {
		f.retry()
		var valid []intercept.Binding
		for _, b := range want.Bindings {
			if b.VIP.Addr.Is6() != f.v6 {
				continue
			}
			if err := r.refuse(f, b, want); err != nil {
				refused = append(refused, &intercept.BindingError{Binding: b, Err: err})
				continue
			}
			valid = append(valid, b)
		}
		if f.broken != nil {
			return nil
		}
		if err := f.refresh(); err != nil {
			return err
		}
		valid, errs := r.steer(f, valid) // before the routes, so that clients do not come to somebody else
		refused = append(refused, errs...)
		var addrs []netip.Addr
		for _, b := range valid {
			if f.serves(b.VIP) {
				addrs = append(addrs, b.VIP.Addr)
			}
		}
		failed := f.add(addrs, r.cidrs())
		sharing := map[netip.AddrPort]bool{}
		for _, b := range valid {
			if err := failed[b.VIP.Addr]; err != nil {
				refused = append(refused, &intercept.BindingError{Binding: b, Err: err})
			} else if r.sharing(b) {
				sharing[dialledBy(b.VIP)] = true
			}
		}
		err := errors.Join(f.removeRest(addrs, r.cidrs()), r.shared.forget(f, sharing))
		f.addrs, f.committed, f.settled = addrs, err == nil, nil
		f.barren = without(f.asked, addrs)
		if err == nil {
			err = ctx.Err()
		}
		return err
	})
	return errors.Join(append(refused, err)...)
}

// refuse returns why b cannot be put in force, if it cannot; nil does not mean that its route works.
func (r *Routes) refuse(f *family, b intercept.Binding, want intercept.State) error {
	const how = "without netfilter, which --interception local does without, clients cannot be told apart"
	if err := b.VIP.Validate(); err != nil {
		return err
	}
	switch v := b.VIP; {
	case f.broken != nil:
		return f.broken
	case v.Addr.IsLinkLocalUnicast() && f.v6:
		return fmt.Errorf("%s is a link-local address, which belongs to one interface", v.Addr)
	case b.Sources != nil:
		return fmt.Errorf("it is restricted to %s, and %s: it stays closed", prefixes(b.Sources), how)
	case b.Local.IsValid() && b.Local != b.Listen:
		return fmt.Errorf("clients on this node are to come to %s, others to %s, and %s", b.Local, b.Listen, how)
	case v.NodePort() && want.NodePorts != nil:
		return fmt.Errorf("NodePorts are restricted to %s (--nodeport-addresses), and %s: it stays closed", prefixes(want.NodePorts), how)
	case v.NodePort() && want.NoLocalhostNodePorts:
		return fmt.Errorf("NodePorts are to be closed at loopback addresses (--iptables-localhost-nodeports=false), and %s: it stays closed", how)
	case b.Listen.IsValid() && b.Listen != r.BindAddr(v, 0) && !r.sharing(b):
		return fmt.Errorf("the proxy listens on %s, and not on the address itself", b.Listen)
	case r.sharing(b) && r.shared.unable != nil:
		return r.shared.unable
	}
	return nil
}

// Verify implements intercept.Interceptor. As long as the kernel has told of no change of routes or addresses since they
// were last read, it reads nothing.
func (r *Routes) Verify(ctx context.Context) (bool, error) {
	defer r.publish()
	intact := true
	err := r.each(func(f *family) error {
		if f.broken != nil {
			return nil
		}
		if err := f.refresh(); err != nil {
			return err
		}
		intact = intact && f.committed && f.inForce(r.cidrs()) && r.shared.inForce(f)
		return ctx.Err()
	})
	return intact && err == nil, err
}

// Cleanup implements intercept.Interceptor. It takes the routes of an earlier process too; what VIPs of that shared has ended
// with it.
func (r *Routes) Cleanup(ctx context.Context) error {
	defer r.publish()
	err := r.each(func(f *family) error {
		f.addrs, f.committed, f.settled, f.stale = nil, false, nil, true
		return errors.Join(f.clear(), r.shared.forget(f, nil), ctx.Err())
	})
	if r.shared.lookup != nil {
		err = errors.Join(err, r.shared.lookup.detach())
	}
	return err
}

// Cleanup removes the routes that any process of ours has left, and returns how many there were. Unlike New, it makes no
// demands on the kernel.
func Cleanup() (removed int, err error) {
	var errs []error
	for _, v6 := range []bool{false, true} {
		f := &family{v6: v6, kernel: kernel{}}
		errs = append(errs, f.clear())
		removed += f.removed
	}
	return removed, errors.Join(errs...)
}

// each has do look at each family, after noticing whether something has changed since the last time.
func (r *Routes) each(do func(*family) error) error {
	if r.watch.changed() {
		for _, f := range r.families {
			f.stale = true
		}
	}
	var errs []error
	for _, f := range r.families {
		errs = append(errs, do(f))
	}
	return errors.Join(errs...)
}

func (r *Routes) cidrs() []netip.Prefix {
	if r.cfg.ServiceCIDRs == nil {
		return nil
	}
	return r.cfg.ServiceCIDRs()
}

func prefixes(list []netip.Prefix) string {
	if len(list) == 0 {
		return "nobody"
	}
	var out []string
	for _, p := range list {
		out = append(out, p.String())
	}
	return strings.Join(out, ", ")
}
