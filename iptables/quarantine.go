package iptables

import (
	"context"
	"fmt"
	"time"

	"redial/proxy/intercept"
)

// retryAfter is how long a rule that the kernel refused is left out while its text stays the same. Trying it costs a
// failed write and a search, so not with every change of other Services; it may start to work when a module is loaded.
const retryAfter = 5 * time.Minute

// maxCulprits ends a search that would start thousands of processes: so many bad rules have a common cause.
const maxCulprits = 64

// quarantine is a binding whose rules were refused.
type quarantine struct {
	text  string
	err   error
	until time.Time
}

// commit steers bindings, all of f's family, to the proxy. The errors are BindingErrors, or one error of another kind.
func (f *family) commit(ctx context.Context, bindings []intercept.Binding, lay layout) []error {
	leaves := make([]leaf, 0, len(bindings))
	held := map[intercept.VIP]quarantine{}
	for _, b := range bindings {
		l := lay.leaf(b)
		if q, found := f.quarantined[b.VIP]; found && q.text == l.text() && f.now().Before(q.until) {
			held[b.VIP] = q
			continue
		}
		leaves = append(leaves, l)
	}
	f.quarantined = held
	err := f.put(ctx, lay.render(leaves))
	if err != nil && blamesInput(err) {
		leaves, err = f.putWithout(ctx, err, leaves, lay)
	}
	f.dropping = 0
	for _, l := range leaves {
		if l.closed {
			f.dropping++
		}
	}
	var errs []error
	if len(f.quarantined) > 0 {
		for _, b := range bindings {
			if q, found := f.quarantined[b.VIP]; found {
				errs = append(errs, &intercept.BindingError{Binding: b, Err: q.err})
			}
		}
	}
	if err != nil {
		errs = append(errs, err)
	}
	return errs
}

// putWithout puts the rules that the kernel does not refuse, after refused, the failure of all together, and returns
// theirs.
func (f *family) putWithout(ctx context.Context, refused error, leaves []leaf, lay layout) ([]leaf, error) {
	culprits, err := f.culprits(ctx, leaves, lay)
	if err != nil {
		return leaves, fmt.Errorf("%w (looking for the rule to blame: %w)", refused, err)
	}
	if len(culprits) == 0 {
		return leaves, refused
	}
	var good []leaf
	for _, l := range leaves {
		err, found := culprits[l.vip]
		if !found {
			good = append(good, l)
			continue
		}
		f.quarantined[l.vip] = quarantine{l.text(), err, f.now().Add(retryAfter)}
		f.log.WithError(err).WithField("family", f.name()).WithField("vip", l.vip.String()).
			Warn("the kernel refuses a rule; leaving it out")
	}
	return good, f.put(ctx, lay.render(good))
}

// culprits finds the leaves that the kernel refuses, by trying halves in a chain that nothing leads to. An error means
// that it could not be found out, in particular that even a rule beyond suspicion is refused.
func (f *family) culprits(ctx context.Context, leaves []leaf, lay layout) (map[intercept.VIP]error, error) {
	try := func(part []leaf) error {
		c := chain{name: scratchChain}
		for _, l := range part {
			c.rules = append(c.rules, l.trial()...)
		}
		return f.restore(ctx, restoreInput(table{"nat", []chain{c}}, nil))
	}
	reference := lay.leaf(intercept.Binding{VIP: f.reference(), Listen: f.wildcard(9)})
	if err := try([]leaf{reference}); err != nil {
		return nil, err
	}
	found := map[intercept.VIP]error{}
	var search func(part []leaf) error
	search = func(part []leaf) error {
		err := try(part)
		switch {
		case err == nil:
			return nil
		case !blamesInput(err):
			return err
		case len(part) > 1:
			if err := search(part[:len(part)/2]); err != nil {
				return err
			}
			return search(part[len(part)/2:])
		case len(found) == maxCulprits:
			return fmt.Errorf("more than %d rules are refused", maxCulprits)
		}
		found[part[0].vip] = err
		return nil
	}
	if err := search(leaves); err != nil {
		return nil, err
	}
	return found, f.restore(ctx, restoreInput(table{name: "nat"}, []string{scratchChain}))
}
