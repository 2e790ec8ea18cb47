package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"
	"github.com/sirupsen/logrus"
)

// Mode is the kernel interface that iptables programs write to. Rules in one are not seen by programs of the other, yet
// the kernel evaluates both.
type Mode string

// Modes.
const (
	// ModeAuto is the mode that holds the node's rules: the one with kubelet's hint chains, else the one with more rules,
	// else nft. What the plain "iptables" stands for plays no part: in a container it says nothing about the node.
	ModeAuto   Mode = "auto"
	ModeNFT    Mode = "nft"
	ModeLegacy Mode = "legacy"
)

// tools are the programs for one mode and family.
type tools struct {
	mode          Mode
	save, restore string
	version       string
	waits         bool // restore takes -w
}

// host is what this package needs of the machine that it runs on.
type host struct {
	runner  runner
	network func(v6 bool) (network, error)
	// client returns a go-iptables client for a program.
	client func(path string, v6 bool, wait time.Duration) (client, error)
	// legacyTables returns the tables that exist in legacy mode, without creating any.
	legacyTables func(v6 bool) []string
	// generation returns what tells one ruleset of a mode and family from the one before, if that can be known.
	generation func(m Mode, v6 bool) func() (uint32, bool)
	flows      flowTable
	now        func() time.Time
}

// client is the part of go-iptables in use.
type client interface {
	hooker
	GetIptablesVersion() (major, minor, patch int)
}

func newHost(r runner) host {
	return host{
		runner:  r,
		network: readNetwork,
		flows:   kernelFlows{},
		client: func(path string, v6 bool, wait time.Duration) (client, error) {
			protocol := goiptables.ProtocolIPv4
			if v6 {
				protocol = goiptables.ProtocolIPv6
			}
			return goiptables.New(goiptables.Path(path), goiptables.IPFamily(protocol),
				goiptables.Timeout(max(1, int(wait.Seconds()))))
		},
		legacyTables: func(v6 bool) []string {
			file := "/proc/net/ip_tables_names"
			if v6 {
				file = "/proc/net/ip6_tables_names"
			}
			text, _ := os.ReadFile(file) // without legacy support there is no such file and there are no tables
			return strings.Fields(string(text))
		},
		generation: func(m Mode, v6 bool) func() (uint32, bool) {
			if m == ModeNFT {
				return nftGeneration
			}
			return func() (uint32, bool) { return legacyGeneration(v6) }
		},
		now: time.Now,
	}
}

// newFamily finds the programs for one mode and family: those named after the mode, else the plain ones if they are of
// that mode.
func newFamily(ctx context.Context, h host, mode Mode, v6 bool, cfg Config) (*family, error) {
	plain := "iptables"
	if v6 {
		plain = "ip6tables"
	}
	var missing error
	for _, command := range []string{plain + "-" + string(mode), plain} {
		c, err := h.client(command, v6, cfg.LockWait)
		if err != nil {
			missing = errors.Join(missing, fmt.Errorf("asking %s for its version: %w", command, err))
			continue
		}
		if command == plain {
			stdout, stderr, err := h.runner.run(ctx, "", plain, "--version")
			if err != nil {
				return nil, newToolError("asking "+plain+" for its mode", stderr, err)
			}
			if strings.Contains(string(stdout), "nf_tables") != (mode == ModeNFT) {
				missing = errors.Join(missing, fmt.Errorf("%s is not of mode %s", plain, mode))
				continue
			}
		}
		major, minor, patch := c.GetIptablesVersion()
		version := []int{major, minor, patch}
		return &family{
			v6: v6,
			tools: tools{
				mode: mode, save: command + "-save", restore: command + "-restore",
				version: fmt.Sprintf("%d.%d.%d", major, minor, patch),
				waits:   slices.Compare(version, []int{1, 6, 2}) >= 0,
			},
			runner: h.runner, hooker: c, generation: h.generation(mode, v6), wait: cfg.LockWait, now: h.now, log: cfg.Log,
		}, nil
	}
	return nil, missing
}

// choose fills r with the families of the mode to use, and of the other.
func (r *Rules) choose(ctx context.Context, h host) error {
	byMode := map[Mode][]*family{}
	absent := map[Mode]map[bool]error{}
	for _, mode := range []Mode{ModeNFT, ModeLegacy} {
		absent[mode] = map[bool]error{}
		for _, v6 := range []bool{false, true} {
			f, err := newFamily(ctx, h, mode, v6, r.cfg)
			if err != nil {
				absent[mode][v6] = err
				continue
			}
			f.exists = func() bool { return mode == ModeNFT || len(h.legacyTables(v6)) > 0 }
			byMode[mode] = append(byMode[mode], f)
		}
	}
	var candidates []Mode
	fields := logrus.Fields{}
	switch r.cfg.Mode {
	case "", ModeAuto:
		nft, legacy := censusOf(ctx, byMode[ModeNFT]), censusOf(ctx, byMode[ModeLegacy])
		candidates = []Mode{ModeNFT, ModeLegacy}
		if legacy.outweighs(nft) {
			candidates = []Mode{ModeLegacy, ModeNFT}
		}
		fields["nft"], fields["legacy"] = nft.String(), legacy.String()
	case ModeNFT, ModeLegacy:
		candidates = []Mode{r.cfg.Mode}
	default:
		return fmt.Errorf("iptables mode %q: want %s, %s or %s", r.cfg.Mode, ModeAuto, ModeNFT, ModeLegacy)
	}
	var failures error
	for _, mode := range candidates {
		works := false
		for _, f := range byMode[mode] {
			f.broken = f.probe(ctx)
			works = works || f.broken == nil
			failures = errors.Join(failures, f.broken)
		}
		if works {
			r.mode, r.families, r.absent = mode, byMode[mode], absent[mode]
			for _, f := range r.families {
				f.siblings = r.families
			}
			for other := range byMode {
				if other != mode {
					r.others = byMode[other]
				}
			}
			fields["mode"], fields["version"] = string(mode), r.families[0].tools.version
			r.cfg.Log.WithFields(fields).Info("steering traffic with iptables")
			return nil
		}
		failures = errors.Join(failures, absent[mode][false], absent[mode][true])
	}
	if errors.Is(failures, exec.ErrNotFound) {
		return fmt.Errorf("no usable iptables: install it, choose --iptables-mode, or run with --interception=local or none: %w", failures)
	}
	return fmt.Errorf("no usable iptables: run as root with the nat table in the kernel, choose --iptables-mode, or run with "+
		"--interception=local or none: %w", failures)
}

// probe reports whether the nat table works: it makes a chain with a REDIRECT rule and deletes it. In nft mode that is one
// go, in which the kernel sees both. Legacy tools would hand it the outcome, which is nothing, and it might yet lack REDIRECT.
func (f *family) probe(ctx context.Context) error {
	put := fmt.Sprintf(":%[1]s - [0:0]\n-A %[1]s -p tcp -m tcp --dport 9 -j REDIRECT --to-ports 9\n", scratchChain)
	remove := fmt.Sprintf("-F %[1]s\n-X %[1]s\n", scratchChain)
	steps := []string{put + remove}
	if f.tools.mode == ModeLegacy {
		steps = []string{put, remove}
	}
	for _, step := range steps {
		if err := f.restore(ctx, "*nat\n"+step+"COMMIT\n"); err != nil {
			return fmt.Errorf("the %s nat table does not work in %s mode: %w", f.name(), f.tools.mode, err)
		}
	}
	return nil
}

// census is what is known of the rules in one mode. Ours do not count: they follow the others'.
type census struct {
	programs, hints, ours bool
	rules                 int
}

func (c census) String() string {
	switch {
	case !c.programs:
		return "no programs"
	case c.hints:
		return fmt.Sprintf("%d rules, kubelet's hint", c.rules)
	}
	return fmt.Sprintf("%d rules", c.rules)
}

// outweighs reports whether c is the mode to use rather than o, which wins a tie.
func (c census) outweighs(o census) bool {
	switch {
	case c.programs != o.programs:
		return c.programs
	case c.hints != o.hints:
		return c.hints
	case c.rules != o.rules:
		return c.rules > o.rules
	}
	return c.ours && !o.ours
}

func censusOf(ctx context.Context, families []*family) census {
	var c census
	for _, f := range families {
		c.programs = true
		if !f.exists() {
			continue
		}
		stdout, _, err := f.runner.run(ctx, "", f.tools.save)
		if err != nil {
			continue // the probe will tell why
		}
		for line := range strings.Lines(string(stdout)) {
			switch {
			case strings.HasPrefix(line, ":KUBE-IPTABLES-HINT "), strings.HasPrefix(line, ":KUBE-KUBELET-CANARY "):
				c.hints = true
			case strings.HasPrefix(line, ":"+prefix):
				c.ours = true
			case strings.HasPrefix(line, "-A ") && !strings.Contains(line, prefix):
				c.rules++
			}
		}
	}
	return c
}
