package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"redial/proxy/intercept"
)

// family is the rules of IPv4 or IPv6: what they are written with and what is known of the kernel's copy.
type family struct {
	v6         bool
	tools      tools
	runner     runner
	hooker     hooker
	generation func() (uint32, bool)
	wait       time.Duration
	now        func() time.Time
	log        *logrus.Entry

	// exists reports whether there may be tables to read; asking creates none.
	exists   func() bool
	siblings []*family // all families of the mode
	broken   error     // why its nat table cannot be used; nil: it can

	// applied is what the kernel is known to hold; nil: nothing is known and the next write must be a full one.
	applied   *ruleset
	seen      map[string]image // per table, right after the last write
	writtenAt moment
	literal   bool           // iptables-save shows rules as they were given to iptables-restore
	written   map[string]int // rules of the last write, by table
	target    netip.Addr     // with which applied was rendered
	parting   bool           // whether applied tells pods of this node from others by prefix, and so depends on:
	outward   string

	filterErr   error // why the filter rules could not be written; nil: they were
	quarantined map[intercept.VIP]quarantine
	ranged      []intercept.Binding // those with Sources, of the last Commit
	node        []netip.Addr        // the node's own addresses then; not read if none is ranged
	dropping    int
	stats       FamilyStats
}

func (f *family) name() string {
	if f.v6 {
		return "IPv6"
	}
	return "IPv4"
}

var errForeignEdit = errors.New("another program changes chains " + prefix + "* at the same time; " +
	"look for a second proxy on this node or for a firewall that reloads")

// put brings want into force: not at all if it is, by the chains that differ if the rest is known, else whole.
func (f *family) put(ctx context.Context, want ruleset) error {
	if f.filterErr != nil {
		// Alone first: it costs little to find that they still do not work.
		if err := f.writeTables(ctx, []table{want.filter}); err == nil {
			f.filterErr, f.applied = nil, nil
		} else {
			f.blameFilter(err)
			want.filter.chains = nil
		}
	}
	if f.applied != nil {
		changed, gone := difference(*f.applied, want)
		if len(changed) == 0 && len(gone) == 0 {
			ok, err := f.inForce(ctx)
			if ok || err != nil {
				return err
			}
			f.repairing()
		} else if f.sameTables(want) {
			if done, err := f.writeChanges(ctx, want, changed, gone); done || err != nil {
				return err
			}
		}
	}
	f.applied = nil
	return f.writeWhole(ctx, want)
}

// blameFilter notes that there are no filter rules, and logs it when that is news.
func (f *family) blameFilter(err error) {
	if f.filterErr == nil || f.filterErr.Error() != err.Error() {
		f.log.WithError(err).WithField("family", f.name()).Error("proxy ports are not guarded, and clients are refused instead of dropped: the filter rules could not be written")
	}
	f.filterErr = err
}

func (f *family) repairing() {
	f.stats.Repairs++
	f.log.WithField("family", f.name()).Warn("rules were changed or removed by another program; writing them again")
}

// sameTables reports whether want is hooked into the tables that the last write was, so that hooks stay as they are.
func (f *family) sameTables(want ruleset) bool {
	return (len(f.applied.filter.chains) == 0) == (len(want.filter.chains) == 0)
}

// writeChanges writes only the chains that differ from what is applied, and reports whether that did it. If it did not,
// a rule may be bad or others may have removed what it builds upon: a full write tells. An error means that now is not
// the time for that either.
func (f *family) writeChanges(ctx context.Context, want ruleset, changed, gone map[string][]string) (bool, error) {
	input, written := "", map[string]bool{}
	f.written = map[string]int{}
	tables := want.tables()
	if f.applied.drops() && !want.drops() {
		slices.Reverse(tables) // the tables change one after the other, and who was dropped must not be refused in between
	}
	for _, t := range tables {
		part := table{name: t.name}
		for _, c := range t.chains {
			if slices.Contains(changed[t.name], c.name) {
				part.chains = append(part.chains, c)
				written[c.name] = true
				f.written[t.name] += len(c.rules)
			}
		}
		input += restoreInput(part, gone[t.name])
	}
	before := f.seen
	f.applied = nil
	if err := f.restore(ctx, input); err != nil {
		f.stats.FailedPartials++
		if !blamesInput(err) {
			return false, err
		}
		f.log.WithError(err).WithField("family", f.name()).Debug("writing changes was refused; writing all rules")
		return false, nil
	}
	generation, known := f.generation()
	if f.literal && known && f.writtenAt == (moment{generation, true}) {
		// Nobody else has written since the last look, so what iptables-save would show is known. To read 30,000 rules takes
		// far longer than to write a few.
		f.settle(want, predict(before, want, written, gone), f.writtenAt)
		return true, nil
	}
	now, err := f.read(ctx)
	if err != nil {
		return false, err
	}
	for _, t := range want.tables() {
		if !now[t.name].holds(t, written, before[t.name]) {
			f.repairing()
			return false, nil
		}
	}
	f.settle(want, now, moment{generation, known})
	return true, nil
}

// writeWhole writes everything, whatever is there: chains of an earlier process, duplicate jumps, other people's edits.
func (f *family) writeWhole(ctx context.Context, want ruleset) error {
	f.written = map[string]int{}
	for _, t := range want.tables() {
		for _, c := range t.chains {
			f.written[t.name] += len(c.rules)
		}
	}
	if err := f.writeTables(ctx, want.tables()); err != nil {
		if !blamesInput(err) && !blamesTable(err) {
			return err
		}
		// Maybe only the filter table is to blame. Services must work without the guard of the proxy ports.
		if err := f.writeTables(ctx, []table{want.nat}); err != nil {
			return err
		}
		if err := f.writeTables(ctx, []table{want.filter}); err != nil && len(want.filter.chains) > 0 {
			if !blamesInput(err) && !blamesTable(err) {
				return err
			}
			f.blameFilter(err)
			want.filter.chains = nil
			if err := f.writeTables(ctx, []table{want.filter}); err != nil { // what was there before
				return err
			}
		}
	}

	generation, known := f.generation()
	now, err := f.read(ctx)
	if err != nil {
		return err
	}
	f.literal = true
	for _, t := range want.tables() {
		all := map[string]bool{}
		for _, c := range t.chains {
			all[c.name] = true
			f.literal = f.literal && now[t.name].chains[c.name] == printOf(c.rules)
		}
		if !now[t.name].holds(t, all, image{}) {
			return fmt.Errorf("checking the %s %s table after writing: %w", f.name(), t.name, errForeignEdit)
		}
	}
	f.settle(want, now, moment{generation, known})
	return nil
}

// writeTables writes tables whole in one restore, and sees to the jumps into them.
func (f *family) writeTables(ctx context.Context, tables []table) error {
	now, err := f.read(ctx)
	if err != nil {
		return err
	}
	input, surplus := "", map[string][]jump{}
	for _, t := range tables {
		var strays []jump
		_, strays, surplus[t.name] = sortJumps(t, now[t.name])
		if err := f.unhook(t.name, strays); err != nil { // or the chains they lead to could not be deleted
			return err
		}
		input += restoreInput(t, t.stale(now[t.name]), t.missing(now[t.name])...)
	}
	if err := f.restore(ctx, input); err != nil {
		stale := slices.ContainsFunc(tables, func(t table) bool { return len(t.stale(now[t.name])) > 0 })
		if !stale || !blamesInput(err) || f.writeCarefully(ctx, tables) != nil {
			return err
		}
	}
	for _, t := range tables {
		// Only now, so that there is no moment without a jump.
		if err := f.unhook(t.name, surplus[t.name]); err != nil {
			return err
		}
	}
	return nil
}

// writeCarefully writes tables when their stale chains cannot all be deleted: one that somebody else jumps to can only be
// emptied. Of several tables those before the one to blame have been written, with their jumps, so it looks again.
func (f *family) writeCarefully(ctx context.Context, tables []table) error {
	now, err := f.read(ctx)
	if err != nil {
		return err
	}
	input := ""
	for _, t := range tables {
		whole := t
		for _, name := range t.stale(now[t.name]) {
			whole.chains = append(slices.Clip(whole.chains), chain{name: name})
		}
		input += restoreInput(whole, nil, t.missing(now[t.name])...)
	}
	return f.restore(ctx, input)
}

// restore runs iptables-restore once, or not at all if there is nothing to write.
func (f *family) restore(ctx context.Context, input string) error {
	if input == "" {
		return nil
	}
	args := []string{"--noflush"}
	if f.tools.waits {
		args = append(args, "-w", strconv.Itoa(max(1, int(f.wait.Seconds()))))
	}
	f.stats.Restores++
	was := f.counted()
	start := time.Now()
	_, stderr, err := f.runner.run(ctx, input, f.tools.restore, args...)
	f.stats.Restoring += time.Since(start)
	if err != nil {
		f.stats.FailedRestores++
		return newToolError("writing "+f.name()+" rules with "+f.tools.restore, stderr, err)
	}
	if now := f.counted(); was.known && now == (moment{was.generation + transactions(input), true}) {
		f.carry(was, now)
	}
	return nil
}

// counted is the generation where it tells how many writes there were.
func (f *family) counted() moment {
	if f.tools.mode != ModeNFT {
		return moment{}
	}
	generation, known := f.generation()
	return moment{generation, known}
}

// transactions is how many of the kernel's transactions iptables-nft-restore makes of an input: one for each table.
func transactions(input string) uint32 { return uint32(strings.Count(input, "\nCOMMIT\n")) }

// carry notes, for all families, that the rules have changed by f alone.
func (f *family) carry(was, now moment) {
	for _, o := range f.siblings { // f is one
		if o.writtenAt == was {
			o.writtenAt = now
		}
	}
}

func (f *family) settle(r ruleset, seen map[string]image, at moment) {
	f.applied, f.seen, f.writtenAt = &r, seen, at
}

// difference names, per table, the chains of want that from does not hold alike, and those of from that want lacks.
func difference(from, want ruleset) (changed, gone map[string][]string) {
	changed, gone = map[string][]string{}, map[string][]string{}
	for i, t := range want.tables() {
		old := map[string][]string{}
		for _, c := range from.tables()[i].chains {
			old[c.name] = c.rules
		}
		for _, c := range t.chains {
			rules, found := old[c.name]
			if !found || !slices.Equal(rules, c.rules) {
				changed[t.name] = append(changed[t.name], c.name)
			}
			delete(old, c.name)
		}
		for name := range old {
			gone[t.name] = append(gone[t.name], name)
		}
		slices.Sort(gone[t.name])
		if len(gone[t.name]) == 0 {
			delete(gone, t.name)
		}
	}
	return changed, gone
}
