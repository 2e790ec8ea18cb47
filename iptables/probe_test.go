package iptables

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

func TestModeIsThatOfTheRules(t *testing.T) {
	foreign := "%[1]s -t nat -A PREROUTING -p tcp --dport 9 -j ACCEPT; "
	for _, c := range []struct {
		name, setup string
		mode        Mode
		want        Mode
	}{
		{"nothing anywhere", "", ModeAuto, ModeNFT},
		{"zero value", "", "", ModeNFT},
		{"legacy only", fmt.Sprintf(foreign, "iptables-legacy"), ModeAuto, ModeLegacy},
		{"legacy IPv6 only", fmt.Sprintf(foreign, "ip6tables-legacy"), ModeAuto, ModeLegacy},
		{"nft only", fmt.Sprintf(foreign, "iptables-nft"), ModeAuto, ModeNFT},
		{"more in legacy", fmt.Sprintf(foreign+foreign, "iptables-legacy") + fmt.Sprintf(foreign, "iptables-nft"), ModeAuto, ModeLegacy},
		{"more in nft", fmt.Sprintf(foreign+foreign, "iptables-nft") + fmt.Sprintf(foreign, "iptables-legacy"), ModeAuto, ModeNFT},
		{"a tie", fmt.Sprintf(foreign, "iptables-nft") + fmt.Sprintf(foreign, "iptables-legacy"), ModeAuto, ModeNFT},
		{"hint beats number", fmt.Sprintf(foreign+foreign, "iptables-nft") + "iptables-legacy -t mangle -N KUBE-KUBELET-CANARY", ModeAuto, ModeLegacy},
		{"ours decide a tie", "iptables-legacy -t nat -N REDIAL-SERVICES", ModeAuto, ModeLegacy},
		{"ours do not outnumber", "iptables-legacy -t nat -N REDIAL-X; iptables-legacy -t nat -A REDIAL-X -j ACCEPT; " + fmt.Sprintf(foreign, "iptables-nft"), ModeAuto, ModeNFT},
		{"forced", fmt.Sprintf(foreign, "iptables-legacy"), ModeNFT, ModeNFT},
		{"forced the other way", fmt.Sprintf(foreign, "iptables-nft"), ModeLegacy, ModeLegacy},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lab.Run(t, func(t *testing.T, node *lab.Host) {
				sh(t, node, c.setup)
				r := start(t, testConfig(c.mode))
				assert.Equal(t, c.want, r.Stats().Mode)
				assert.NotEmpty(t, r.Stats().Version)
				if c.want == ModeNFT && c.setup == "" {
					names, _ := os.ReadFile("/proc/net/ip_tables_names")
					assert.Empty(t, string(names), "looking around made legacy tables")
				}
				assert.NotContains(t, dumpAll(t, c.want), scratchChain, "New writes nothing")
			})
		})
	}
}

func TestNewRefusesUnknownChoices(t *testing.T) {
	_, err := New(Config{Mode: "ebpf"})
	assert.ErrorContains(t, err, `iptables mode "ebpf": want auto, nft or legacy`)
	_, err = New(Config{Target: "tproxy"})
	assert.ErrorContains(t, err, `iptables target "tproxy": want auto, redirect or dnat`)
}

func TestNewWithoutPrograms(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := New(testConfig(ModeAuto))
	require.Error(t, err)
	assert.ErrorContains(t, err, "install it")
	assert.ErrorContains(t, err, "--interception=local")
}

// TestPlainProgramsServeTheirMode: images that have no iptables-nft and iptables-legacy, only iptables.
func TestPlainProgramsServeTheirMode(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			lab.Run(t, func(t *testing.T, _ *lab.Host) {
				dir := t.TempDir()
				for _, family := range []string{"iptables", "ip6tables"} {
					for _, suffix := range []string{"", "-save", "-restore"} {
						program, err := exec.LookPath(family + "-" + string(mode) + suffix)
						require.NoError(t, err)
						script := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\"\n", program)
						require.NoError(t, os.WriteFile(dir+"/"+family+suffix, []byte(script), 0o755))
					}
				}
				t.Setenv("PATH", dir)
				r := start(t, testConfig(ModeAuto))
				assert.Equal(t, mode, r.Stats().Mode)
				require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: everyKind()}))
				assert.True(t, verify(t, r))
				other := ModeNFT
				if mode == ModeNFT {
					other = ModeLegacy
				}
				_, err := New(testConfig(other))
				assert.ErrorContains(t, err, "iptables is not of mode "+string(other))
			})
		})
	}
}

func TestWithoutPrivilege(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, _ *lab.Host) {
		for _, mode := range modes { // legacy programs do not tell a missing privilege from a missing table
			_, err := newRules(t.Context(), testConfig(mode), newHost(unprivileged{}))
			require.Error(t, err, mode)
			assert.ErrorContains(t, err, "root", mode)
		}
	})
}

// Legacy programs hand the kernel the outcome of what they read. A rule that is gone again by then tells nothing of it.
func TestLegacyProbeShowsTheKernelARule(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, _ *lab.Host) {
		_, err := newRules(t.Context(), testConfig(ModeLegacy), newHost(withoutRedirect{}))
		require.Error(t, err)
		assert.ErrorContains(t, err, "nat table does not work in legacy mode")
		assert.Equal(t, "writing IPv4 rules with iptables-legacy-restore: exit status 1: iptables-restore: line 4 failed: No chain/target/match by that name.", Cause(err))
	})
}

// withoutRedirect is a kernel that has the legacy nat table without REDIRECT.
type withoutRedirect struct{}

func (withoutRedirect) run(ctx context.Context, stdin, name string, args ...string) ([]byte, string, error) {
	if strings.Contains(stdin, "-j REDIRECT") && !strings.Contains(stdin, "-X "+scratchChain) {
		return nil, "iptables-restore: line 4 failed: No chain/target/match by that name.", exitStatus(1)
	}
	return programs{}.run(ctx, stdin, name, args...)
}

// unprivileged runs programs as nobody.
type unprivileged struct{}

func (unprivileged) run(ctx context.Context, stdin, name string, args ...string) ([]byte, string, error) {
	return programs{}.run(ctx, stdin, "setpriv", append([]string{"--reuid=65534", "--clear-groups", "--inh-caps=-all", name}, args...)...)
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		stderr string
		err    error
		want   fault
		advice string
	}{
		{"Another app is currently holding the xtables lock. Perhaps you want to use the -w option?", exitStatus(4), faultLocked, "lock"},
		{"line 3: CHAIN_DEL failed (Device or resource busy): chain REDIAL-A", exitStatus(4), faultOther, ""},
		{"Fatal: can't open lock file /run/xtables.lock: Permission denied", exitStatus(4), faultPermission, "root"},
		{"iptables v1.8.9: can't initialize iptables table `nat': Permission denied (you must be root)", exitStatus(3), faultPermission, "root"},
		{"ip6tables: can't initialize ip6tables table `nat': Table does not exist (do you need to insmod?)", exitStatus(3), faultMissingTable, "--iptables-mode"},
		{"Extension conntrack revision 0 not supported, missing kernel module?", exitStatus(2), faultOther, "missing from the kernel"},
		{"invalid mask `128' specified", exitStatus(2), faultOther, ""},
		{"", &exec.Error{Name: "iptables-nft-restore", Err: exec.ErrNotFound}, faultMissingProgram, "install iptables"},
		{"", context.DeadlineExceeded, faultCancelled, ""},
	} {
		err := newToolError("writing", c.stderr, c.err)
		var tool *toolError
		require.ErrorAs(t, err, &tool)
		assert.Equal(t, c.want, tool.fault, c.stderr)
		assert.ErrorIs(t, err, c.err)
		if c.advice == "" {
			assert.Empty(t, tool.advice, c.stderr)
		} else {
			assert.Contains(t, tool.advice, c.advice)
		}
	}
}

// TestWaitsForTheLock holds the lock of the legacy programs until one of them is seen to wait for it.
func TestWaitsForTheLock(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, _ *lab.Host) {
		cfg := testConfig(ModeLegacy)
		r := start(t, cfg)
		release := holdLock(t)
		done := make(chan error, 1)
		go func() { done <- r.Commit(context.Background(), intercept.State{Bindings: everyKind()}) }()
		require.Eventually(t, func() bool { return waiters(t) > 0 }, patience, 5*time.Millisecond)
		select {
		case err := <-done:
			require.Fail(t, "did not wait", "%v", err)
		default:
		}
		release()
		require.NoError(t, <-done)
		assert.True(t, verify(t, r))
	})
}

func TestGivesUpOnTheLock(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, _ *lab.Host) {
		cfg := testConfig(ModeLegacy)
		cfg.LockWait = time.Second
		r := start(t, cfg)
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: everyKind()}))
		before := dumpAll(t, ModeLegacy)
		release := holdLock(t)
		err := r.Commit(t.Context(), intercept.State{Bindings: everyKind()[5:]})
		require.Error(t, err)
		assert.ErrorContains(t, err, "xtables.lock")
		release()
		assert.Equal(t, before, dumpAll(t, ModeLegacy))
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: everyKind()[5:]}))
		assert.Zero(t, r.Stats().IPv4.Quarantined)
		assert.Equal(t, len(everyKind())-5, strings.Count(dumpAll(t, ModeLegacy), "--to-ports"), "the change was not lost")
	})
}

// TestFallsBackToTheModeThatWorks: the rules of others say nft, but the kernel has no nat table for it.
func TestFallsBackToTheModeThatWorks(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, _ *lab.Host) {
		h := newHost(refusing{programs{}, func(name string) bool { return strings.Contains(name, "nft") }})
		r, err := newRules(t.Context(), testConfig(ModeAuto), h)
		require.NoError(t, err)
		assert.Equal(t, ModeLegacy, r.Stats().Mode)
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: everyKind()}))
		assert.True(t, verify(t, r))

		_, err = newRules(t.Context(), testConfig(ModeNFT), h)
		require.Error(t, err)
		assert.ErrorContains(t, err, "nat table does not work in nft mode")
		assert.ErrorContains(t, err, "--iptables-mode")
	})
}
