package iptables

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

var update = flag.Bool("update", os.Getenv("UPDATE_GOLDEN") != "", "rewrite testdata/*.golden from what the kernel shows")

// requireGolden compares with testdata/name.golden. Both modes share a file: they must not differ.
func requireGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), got, name)
}

func TestGolden(t *testing.T) {
	var tall, ports []intercept.Binding
	for i := range uint16(40) {
		owner := fmt.Sprintf("ns/tall-%d:http", i)
		tall = append(tall,
			bind(fmt.Sprintf("10.96.%d.%d", i/20, i), 80, intercept.TCP, 61000+i, owner),
			bind(fmt.Sprintf("fd00:10:96::%x:%x", i/20, i), 80, intercept.TCP, 61000+i, owner))
		ports = append(ports,
			bind("*4", 30000+i*50, intercept.TCP, 61000+i, owner), bind("*4", 30000+i*50, intercept.UDP, 61000+i, owner),
			bind("*6", 30000+i*50, intercept.TCP, 61000+i, owner), bind("203.0.113.5", 1000+i, intercept.UDP, 61000+i, owner))
	}
	for _, c := range []struct {
		name   string
		state  intercept.State
		change func(*Config)
	}{
		{"empty", intercept.State{}, func(*Config) {}},
		{"every-kind", intercept.State{Bindings: everyKind()}, func(*Config) {}},
		{"dnat", intercept.State{Bindings: everyKind()}, func(c *Config) { c.Target = TargetDNAT }},
		{"unguarded", intercept.State{Bindings: everyKind()}, func(c *Config) { c.Mark, c.ProxyPorts = 0, intercept.PortRange{} }},
		{"tree", intercept.State{Bindings: tall}, func(*Config) {}},
		{"ports", intercept.State{Bindings: ports}, func(*Config) {}},
		{"policies", policies(), func(*Config) {}},
		{"policies-dnat-unguarded", policies(), func(c *Config) { c.Target, c.ProxyPorts = TargetDNAT, intercept.PortRange{} }},
		{"health-checks", intercept.State{HealthChecks: []uint16{31000, 31005}}, func(*Config) {}},
		{"no-node-ports", intercept.State{Bindings: everyKind(), NodePorts: []netip.Prefix{}}, func(*Config) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
				// Rules of others, which must come out of it unharmed.
				sh(t, node, fmt.Sprintf("for p in iptables-%[1]s ip6tables-%[1]s; do "+
					"$p -t nat -N OTHER; $p -t nat -A OTHER -p tcp --dport 9 -m comment --comment 'not REDIAL-SERVICES' -j ACCEPT; "+
					"$p -t nat -A PREROUTING -j OTHER; $p -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT; $p -P FORWARD DROP; done", mode))
				before := dumpAll(t, mode)
				cfg := testConfig(mode)
				c.change(&cfg)
				r := start(t, cfg)
				require.NoError(t, r.Commit(t.Context(), c.state))
				for _, f := range r.families {
					assert.True(t, f.literal, "%s rules are not spelled as iptables-save does: every change would have all of them read", f.name())
				}
				for _, v6 := range []bool{false, true} {
					family := map[bool]string{false: "v4", true: "v6"}[v6]
					for _, table := range []string{"nat", "filter"} {
						requireGolden(t, c.name+"-"+family+"-"+table, dump(t, mode, v6, table))
					}
				}
				require.NoError(t, r.Cleanup(t.Context()))
				assert.Equal(t, before, dumpAll(t, mode), "after Cleanup")
				require.NoError(t, r.Cleanup(t.Context()), "twice")
				assert.Equal(t, before, dumpAll(t, mode))
				assert.False(t, verify(t, r))
				require.NoError(t, r.Commit(t.Context(), c.state), "after Cleanup")
				assert.True(t, verify(t, r))
			})
		})
	}
}

func TestCleanupLooksInBothModes(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		var before []string
		for _, mode := range modes {
			sh(t, node, fmt.Sprintf("iptables-%[1]s -t nat -A PREROUTING -p tcp --dport 9 -j ACCEPT; ip6tables-%[1]s -t nat -A OUTPUT -j ACCEPT", mode))
			before = append(before, dumpAll(t, mode)) // lists, and so makes, all four tables
		}
		require.NoError(t, start(t, testConfig(ModeLegacy)).Commit(t.Context(), intercept.State{Bindings: everyKind()}))
		legacy := dumpAll(t, ModeLegacy)
		r := start(t, testConfig(ModeNFT))
		assert.Equal(t, legacy, dumpAll(t, ModeLegacy), "until ours are in, the others serve")
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: everyKind()}))
		assert.Equal(t, before[1], dumpAll(t, ModeLegacy), "the first Commit removes the copies in the other mode")

		require.NoError(t, start(t, testConfig(ModeLegacy)).Commit(t.Context(), intercept.State{}))
		assert.Equal(t, before[0], dumpAll(t, ModeNFT), "and the other way round")
		require.NoError(t, start(t, testConfig(ModeNFT)).Cleanup(t.Context()))
		assert.Equal(t, before[0], dumpAll(t, ModeNFT))
		assert.Equal(t, before[1], dumpAll(t, ModeLegacy))
	})
}

func TestCleanupCreatesNoLegacyTables(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, _ *lab.Host) {
		cfg := testConfig(ModeAuto)
		r := start(t, cfg)
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: everyKind()}))
		require.NoError(t, r.Cleanup(t.Context()))
		for _, file := range []string{"/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"} {
			names, _ := os.ReadFile(file)
			assert.Empty(t, string(names), file)
		}
	})
}
