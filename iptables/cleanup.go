package iptables

import (
	"context"
	"errors"
	"maps"
	"slices"
)

// ourTables are the tables that may hold something of ours.
var ourTables = []string{"filter", "nat"}

// Cleanup implements intercept.Interceptor. It looks in both modes, and for both families.
func (r *Rules) Cleanup(ctx context.Context) error {
	defer r.publish()
	r.settled = nil
	var errs []error
	for _, f := range slices.Concat(r.families, r.others) {
		f.applied, f.seen = nil, nil
		_, err := f.clear(ctx)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// tidy removes what an earlier process left in the mode that is not used.
func (r *Rules) tidy(ctx context.Context) error {
	var errs []error
	for _, f := range r.others {
		chains, err := f.clear(ctx)
		if chains > 0 {
			f.log.WithField("family", f.name()).WithField("mode", string(f.tools.mode)).WithField("chains", chains).
				Warn("removed rules that an earlier process left in the other iptables mode")
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// clear removes all of ours from f's tables, with the jumps from whatever chain into them, and returns the number of chains
// found.
func (f *family) clear(ctx context.Context) (int, error) {
	if !f.exists() {
		return 0, nil
	}
	now, err := f.read(ctx)
	if err != nil {
		return 0, err
	}
	found, input := 0, ""
	for _, name := range ourTables {
		if err := f.unhook(name, now[name].jumps); err != nil {
			return 0, err
		}
		found += len(now[name].chains)
		input += restoreInput(table{name: name}, slices.Sorted(maps.Keys(now[name].chains)))
	}
	return found, f.restore(ctx, input)
}
