package local

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"redial/proxy/intercept"
)

// family is one half of the work.
type family struct {
	v6     bool
	kernel routing
	log    *logrus.Entry
	broken error // why nothing of this family can be made local; nil: it can

	table     table
	read      bool // table was
	stale     bool // the kernel has told of changes since
	addrs     []netip.Addr
	asked     []netip.Addr        // of Prepare
	barren    map[netip.Addr]bool // those of them that were not committed
	committed bool
	settled   []netip.Prefix            // the Service CIDRs with which all was found in force; nil: it is to be looked at
	shared    map[netip.AddrPort]uint32 // the VIPs that share listeners, and the slots of these
	source    netip.Addr                // of our routes; the zero value until one is chosen

	dubious         map[netip.Prefix]string // Service CIDRs that cannot be local as a whole, and why
	added, removed  int
	refused         int
	assigned        int // times a VIP that shares was written, or removed
	sourceExplained netip.Addr
}

func familyName(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}

// serves reports whether v needs a route of this family.
func (f *family) serves(v intercept.VIP) bool {
	return f.broken == nil && v.Addr.Is6() == f.v6 && !v.NodePort() && v.Validate() == nil
}

// without is the set of those in all that are not in some.
func without(all, some []netip.Addr) map[netip.Addr]bool {
	out := make(map[netip.Addr]bool, len(all))
	for _, a := range all {
		out[a] = true
	}
	for _, a := range some {
		delete(out, a)
	}
	return out
}

// refresh reads what there is, unless it is known.
func (f *family) refresh() error {
	if f.broken != nil || f.read && !f.stale {
		return nil
	}
	t, err := f.kernel.read(f.v6)
	if err != nil {
		return fmt.Errorf("reading %s routes: %w", familyName(f.v6), err)
	}
	f.table, f.read, f.stale, f.settled = t, true, false, nil
	f.source = t.sourceFor(f.source)
	return nil
}

// inForce reports whether exactly what the last Commit wanted is there.
func (f *family) inForce(cidrs []netip.Prefix) bool {
	if f.settled != nil && slices.Equal(f.settled, cidrs) {
		return true // since then nothing was read
	}
	p := f.plan(f.addrs, cidrs)
	if len(f.table.strays) > 0 || len(f.table.ours) != len(p.want) {
		return false
	}
	for prefix, source := range f.table.ours {
		if !p.want[prefix] || source != f.source {
			return false
		}
	}
	f.settled = append([]netip.Prefix{}, cidrs...)
	return true
}

// add writes the routes that are missing and returns which addresses cannot be local, and why.
func (f *family) add(addrs []netip.Addr, cidrs []netip.Prefix) map[netip.Addr]error {
	if f.broken != nil {
		return nil
	}
	p := f.plan(addrs, cidrs)
	for _, prefix := range slices.SortedFunc(maps.Keys(p.want), comparePrefixes) {
		err := f.set(prefix)
		switch {
		case err == nil:
		case prefix.IsSingleIP():
			p.refused[prefix.Addr()] = err
		default:
			// As a whole it cannot be had; perhaps its addresses can.
			f.log.WithError(err).WithField("cidr", prefix).Warn("the Service CIDR cannot be made local as a whole, each address is made so for itself")
			without := slices.DeleteFunc(slices.Clone(cidrs), func(c netip.Prefix) bool { return c.Masked() == prefix })
			return f.add(addrs, without)
		}
	}
	f.refused = len(p.refused)
	return p.refused
}

// set makes one prefix local, with the right source.
func (f *family) set(prefix netip.Prefix) error {
	source, exists := f.table.ours[prefix]
	if exists && source == f.source {
		return nil
	}
	if f.source != f.sourceExplained {
		f.log.WithField("source", f.source).Info("the node's own clients connect to virtual addresses from here")
		f.sourceExplained = f.source
	}
	err := f.kernel.set(prefix, f.source, exists)
	if errors.Is(err, unix.EEXIST) {
		err = errors.New("there is a route of somebody else to it in the table local, with our metric")
	}
	if err != nil {
		return fmt.Errorf("making %s local: %w", prefix, err)
	}
	f.table.ours[prefix] = f.source
	f.added++
	return nil
}

// removeRest removes what is ours and not wanted.
func (f *family) removeRest(addrs []netip.Addr, cidrs []netip.Prefix) error {
	p := f.plan(addrs, cidrs)
	var errs []error
	for _, prefix := range slices.SortedFunc(maps.Keys(f.table.ours), comparePrefixes) {
		if p.want[prefix] {
			continue
		}
		if err := f.remove(ourRoute(prefix)); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(f.table.ours, prefix)
	}
	for len(f.table.strays) > 0 {
		if err := f.remove(f.table.strays[0]); err != nil {
			return errors.Join(append(errs, err)...)
		}
		f.table.strays = f.table.strays[1:]
	}
	return errors.Join(errs...)
}

// clear removes all that is ours.
func (f *family) clear() error {
	t, err := f.kernel.read(f.v6)
	if err != nil {
		return fmt.Errorf("reading %s routes: %w", familyName(f.v6), err)
	}
	var errs []error
	for prefix := range t.ours {
		errs = append(errs, f.remove(ourRoute(prefix)))
	}
	for _, stray := range t.strays {
		errs = append(errs, f.remove(stray))
	}
	return errors.Join(errs...)
}

func (f *family) remove(r route) error {
	if err := f.kernel.remove(r); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("removing the route to %s: %w", r.prefix, err)
	}
	f.removed++
	return nil
}
