package iptables

import (
	"context"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"
)

// image is what is ours in one table, as iptables-save shows it.
type image struct {
	chains map[string]print
	jumps  []jump // from chains of others into ours, in order
}

// print identifies the content of a chain without keeping it.
type print struct {
	rules int
	sum   uint64
}

// jump is a rule of a chain of others that leads into one of ours.
type jump struct {
	hook
	line string // as saved, without "-A from"
}

func (a image) equal(b image) bool {
	return maps.Equal(a.chains, b.chains) && slices.Equal(a.jumps, b.jumps)
}

// printOf is that of a chain with these rules, if iptables-save shows them as they are: rules are best spelled like it.
func printOf(rules []string) print {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, r := range rules {
		h.WriteString(r)
		h.WriteByte('\n')
	}
	p := print{rules: len(rules)}
	if p.rules > 0 {
		p.sum = h.Sum64()
	}
	return p
}

// predict is what there is in place of before, once the written chains of want are in and those gone are not any more, if
// iptables-save shows rules as they are.
func predict(before map[string]image, want ruleset, written map[string]bool, gone map[string][]string) map[string]image {
	now := map[string]image{}
	for _, t := range want.tables() {
		img := image{maps.Clone(before[t.name].chains), before[t.name].jumps}
		for _, name := range gone[t.name] {
			delete(img.chains, name)
		}
		for _, c := range t.chains {
			if written[c.name] {
				img.chains[c.name] = printOf(c.rules)
			}
		}
		now[t.name] = img
	}
	return now
}

// seed makes prints comparable within this process.
var seed = maphash.MakeSeed()

// readImages picks what is ours from the output of iptables-save, by table. It relies on "*table", ":CHAIN" and "-A CHAIN"
// beginning a line and on "-j" naming the target; what stands between is only fingerprinted.
func readImages(save []byte) map[string]image {
	images := map[string]image{}
	for _, name := range ourTables {
		images[name] = image{chains: map[string]print{}}
	}
	table, img, hashes := "", image{}, map[string]*maphash.Hash{}
	finish := func() {
		for name, h := range hashes {
			p := img.chains[name]
			p.sum = h.Sum64()
			img.chains[name] = p
		}
		if table != "" {
			own := image{make(map[string]print, len(img.chains)), img.jumps}
			for name, p := range img.chains {
				own.chains[strings.Clone(name)] = p // or all of save would stay for its names
			}
			images[table] = own
		}
		table, hashes = "", map[string]*maphash.Hash{}
	}
	for line := range strings.Lines(string(save)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			finish()
			if i := slices.Index(ourTables, line[1:]); i >= 0 {
				table, img = ourTables[i], images[ourTables[i]]
			}
		case table == "":
		case strings.HasPrefix(line, ":"+prefix):
			name, _, _ := strings.Cut(line[1:], " ")
			img.chains[name] = print{} // declarations come before rules
		case strings.HasPrefix(line, "-A "+prefix):
			name, rule, _ := strings.Cut(line[len("-A "):], " ")
			h := hashes[name]
			if h == nil {
				h = new(maphash.Hash)
				h.SetSeed(seed)
				hashes[name] = h
			}
			h.WriteString(rule)
			h.WriteByte('\n')
			p := img.chains[name]
			p.rules++
			img.chains[name] = p
		case strings.HasPrefix(line, "-A ") && strings.Contains(line, prefix):
			from, rule, _ := strings.Cut(line[len("-A "):], " ")
			if to := targetOf(words(rule)); strings.HasPrefix(to, prefix) {
				img.jumps = append(img.jumps, jump{hook{strings.Clone(from), strings.Clone(to)}, strings.Clone(rule)})
			}
		}
	}
	finish()
	return images
}

// targetOf returns the operand of -j or -g.
func targetOf(args []string) string {
	for i, a := range args[:max(len(args)-1, 0)] {
		if a == "-j" || a == "-g" {
			return args[i+1]
		}
	}
	return ""
}

// words splits a rule as iptables-save writes it: text with spaces stands between double quotes, in which a backslash
// escapes the next character.
func words(rule string) []string {
	var out []string
	var word strings.Builder
	quoted, escaped, started := false, false, false
	for _, r := range rule {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quoted:
			escaped = true
		case r == '"':
			quoted, started = !quoted, true
		case r == ' ' && !quoted:
			if started {
				out = append(out, word.String())
				word.Reset()
			}
			started = false
		default:
			word.WriteRune(r)
			started = true
		}
	}
	if started {
		out = append(out, word.String())
	}
	return out
}

// read returns what is ours in the kernel, by table. It lists all tables at once, because listing one takes iptables-nft
// as long, and because that way no legacy table comes into being by being listed.
func (f *family) read(ctx context.Context) (map[string]image, error) {
	start := time.Now()
	stdout, stderr, err := f.runner.run(ctx, "", f.tools.save)
	f.stats.Reading += time.Since(start)
	if err != nil {
		return nil, newToolError("reading "+f.name()+" rules with "+f.tools.save, stderr, err)
	}
	return readImages(stdout), nil
}

// inForce reports whether the kernel still holds what was seen after the last write.
func (f *family) inForce(ctx context.Context) (bool, error) {
	if f.applied == nil {
		return false, nil
	}
	// Asked before reading, so that a change while we read shows the next time.
	generation, known := f.generation()
	if known && f.writtenAt.known && generation == f.writtenAt.generation {
		return true, nil
	}
	now, err := f.read(ctx)
	if err != nil {
		return false, err
	}
	for _, name := range ourTables {
		if !now[name].equal(f.seen[name]) {
			return false, nil
		}
	}
	f.writtenAt = moment{generation, known}
	return true, nil
}

// holds reports whether img is t as just written, given the chains written and what was seen of the others before.
func (img image) holds(t table, written map[string]bool, before image) bool {
	wanted := map[string]bool{}
	for _, c := range t.chains {
		wanted[c.name] = true
		now, found := img.chains[c.name]
		if !found || now.rules != len(c.rules) || !written[c.name] && now != before.chains[c.name] {
			return false
		}
	}
	for name, p := range img.chains {
		if !wanted[name] && p.rules > 0 { // an empty one is stale and could not be deleted
			return false
		}
	}
	return slices.Equal(t.sortedHooks(), img.sortedHooks())
}
