package iptables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"redial/proxy/intercept"
)

// sift sorts bindings by family and refuses those that no rule can be written for. Of two for one VIP, the one whose
// owner sorts first stays, so that the outcome does not depend on the order of the caller's. What it lets through is in
// one form for all that mean the same, see plain.
func sift(bindings []intercept.Binding) (map[bool][]intercept.Binding, []error) {
	sorted := make([]*intercept.Binding, len(bindings)) // bindings are large, and given to others as well
	for i := range bindings {
		sorted[i] = &bindings[i]
	}
	slices.SortStableFunc(sorted, func(a, b *intercept.Binding) int {
		if order := compareVIPs(a.VIP, b.VIP); order != 0 {
			return order
		}
		return strings.Compare(a.Owner, b.Owner)
	})
	six, _ := slices.BinarySearchFunc(sorted, true, func(b *intercept.Binding, _ bool) int {
		if b.VIP.Addr.Is6() {
			return 0
		}
		return -1
	})
	valid := map[bool][]intercept.Binding{false: make([]intercept.Binding, 0, six), true: make([]intercept.Binding, 0, len(sorted)-six)}
	var errs []error
	var last intercept.Binding
	for _, given := range sorted {
		err := errors.Join(given.VIP.Validate(), validateListener(given.VIP, given.Listen), validateListener(given.VIP, given.Local))
		b := plain(*given)
		switch {
		case err != nil:
		case b.VIP == last.VIP && b.Equal(last):
			continue
		case b.VIP == last.VIP:
			err = fmt.Errorf("%s is already steered for %s", b.VIP, last.Owner)
		default:
			last = b
			valid[b.VIP.Addr.Is6()] = append(valid[b.VIP.Addr.Is6()], b)
		}
		if err != nil {
			errs = append(errs, &intercept.BindingError{Binding: *given, Err: err})
		}
	}
	return valid, errs
}

func validateListener(v intercept.VIP, l netip.AddrPort) error {
	if l != nowhere && (l.Port() == 0 || l.Addr().Is6() != v.Addr.Is6()) {
		return errors.New("the listener must have a port and be of the family of the VIP")
	}
	return nil
}

// plain returns the simplest binding that does the same as b: ranges of its family only, none if they hold everybody,
// no listener if they hold nobody, and no listener for clients on this node if it is everybody's.
func plain(b intercept.Binding) intercept.Binding {
	if b.Sources != nil {
		b.Sources = ofFamily(b.VIP.Addr.Is6(), b.Sources)
		switch {
		case len(b.Sources) == 0:
			b.Listen, b.Local, b.Sources = nowhere, nowhere, nil
		case b.Sources[0].Bits() == 0:
			b.Sources = nil
		}
	}
	if b.Local == b.Listen {
		b.Local = nowhere
	}
	if b.Listen == nowhere && b.Local == nowhere {
		b.Sources = nil // whoever comes in finds nothing
	}
	return b
}

// podsOf returns the sources of one family; those by interface are of both. It does not return what no rule can be
// written for.
func podsOf(v6 bool, pods []intercept.PodSource) []intercept.PodSource {
	var out []intercept.PodSource
	for _, p := range pods {
		switch {
		case !validPods(p):
		case p.Interface != "":
			out = append(out, p)
		case p.Prefix.Addr().Is6() == v6:
			out = append(out, intercept.PodSource{Prefix: p.Prefix.Masked()})
		}
	}
	return out
}

// validPods reports whether a rule can be written for p. Interface names are those that iptables-restore takes for one
// word: the kernel allows any byte but a slash, a colon and white space (dev_valid_name), and 15 of them.
func validPods(p intercept.PodSource) bool {
	if p.Interface == "" {
		return p.Prefix.IsValid() && !p.Prefix.Addr().Is4In6()
	}
	return p.Prefix == netip.Prefix{} && len(p.Interface) <= 15 && !strings.ContainsAny(p.Interface[:1], "-!") &&
		!strings.ContainsFunc(p.Interface, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("\"'`\\/:#", r) })
}

// reportPods logs what is left out of pods, when that is news.
func (r *Rules) reportPods(pods []intercept.PodSource) {
	if slices.Equal(r.pods, pods) {
		return
	}
	r.pods = slices.Clone(pods)
	for _, p := range pods {
		if !validPods(p) {
			r.cfg.Log.WithField("prefix", p.Prefix).WithField("interface", p.Interface).
				Warn("packets of pods cannot be told like this; such pods are taken for clients from elsewhere")
		}
	}
}

// only returns those of all that keep says to, in memory for no more than these.
func only[T any](all []T, keep func(T) bool) []T {
	var out []T
	for _, b := range all {
		if keep(b) {
			out = append(out, b)
		}
	}
	return out
}

// clone returns a copy that does not share memory that the caller may write to.
func clone(s intercept.State) intercept.State {
	s.Bindings = slices.Clone(s.Bindings)
	for i := range s.Bindings {
		s.Bindings[i].Sources = slices.Clone(s.Bindings[i].Sources) // keeps nil nil, and empty empty
	}
	s.NodePorts, s.Pods, s.HealthChecks = slices.Clone(s.NodePorts), slices.Clone(s.Pods), slices.Clone(s.HealthChecks)
	return s
}
