package iptables

import (
	"fmt"
	"slices"
	"strings"
)

// hook is a jump from a built-in chain to one of ours.
type hook struct{ from, to string }

// hooks returns the jumps that lead into t.
func (t table) hooks() []hook {
	switch {
	case len(t.chains) == 0:
		return nil
	case t.name == "filter":
		return []hook{{"INPUT", inputChain}, {"OUTPUT", outputChain}}
	default:
		return []hook{{"PREROUTING", preroutingChain}, {"OUTPUT", outputChain}}
	}
}

// spec is the jump as arguments of iptables.
func (h hook) spec() []string {
	return []string{"-m", "comment", "--comment", hookComment, "-j", h.to}
}

const hookComment = "redial: steer Service traffic to the proxy"

// sortJumps compares the jumps of built-in chains into ours with those that t wants.
func sortJumps(t table, now image) (missing []hook, strays, surplus []jump) {
	missing = slices.Clone(t.hooks())
	for _, j := range now.jumps {
		wanted := slices.Contains(t.hooks(), j.hook)
		i := slices.Index(missing, j.hook)
		switch {
		case !builtin(j.from):
		case !wanted:
			strays = append(strays, j)
		case i < 0 || !slices.Equal(words(j.line), j.spec()):
			surplus = append(surplus, j)
		default:
			missing = slices.Delete(missing, i, i+1)
		}
	}
	return missing, strays, surplus
}

func (t table) missing(now image) []hook {
	missing, _, _ := sortJumps(t, now)
	return missing
}

func (f *family) unhook(table string, jumps []jump) error {
	for _, j := range jumps {
		if err := f.hooker.Delete(table, j.from, words(j.line)...); err != nil {
			return fmt.Errorf("deleting a jump from %s %s to %s: %w", f.name(), j.from, j.to, err)
		}
	}
	return nil
}

func (t table) sortedHooks() []hook { return slices.SortedFunc(slices.Values(t.hooks()), compareHooks) }

func (img image) sortedHooks() []hook {
	var hooks []hook
	for _, j := range img.jumps {
		if builtin(j.from) {
			hooks = append(hooks, j.hook)
		}
	}
	slices.SortFunc(hooks, compareHooks)
	return hooks
}

func compareHooks(a, b hook) int { return strings.Compare(a.from+" "+a.to, b.from+" "+b.to) }

// builtin reports whether a chain of nat or filter is one of the kernel's.
func builtin(name string) bool {
	switch name {
	case "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING":
		return true
	}
	return false
}
