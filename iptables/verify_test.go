package iptables

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

func verify(t *testing.T, r *Rules) bool {
	t.Helper()
	ok, err := r.Verify(t.Context())
	require.NoError(t, err)
	return ok
}

func TestDamageIsNoticedAndHealed(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		serve(t, 20033)
		r := start(t, testConfig(mode))
		assert.False(t, verify(t, r), "nothing was committed yet")
		bindings := twoFamilies()
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
		require.True(t, verify(t, r))
		want := sortedLines(dumpAll(t, mode))
		jump := "-m comment --comment 'redial: steer Service traffic to the proxy' -j"
		repairs := 0
		for _, damage := range []string{
			"-F", "-t nat -F", "-t nat -F PREROUTING", "-t filter -F INPUT",
			"-t nat -D OUTPUT " + jump + " REDIAL-OUTPUT",
			"-t nat -D PREROUTING " + jump + " REDIAL-PREROUTING",
			"-t nat -I OUTPUT -j REDIAL-OUTPUT", // a second jump
			"-t filter -I FORWARD -j REDIAL-INPUT",
			"-t nat -D REDIAL-SERVICES 1",
			"-t nat -D REDIAL-10.96.0.32_28 2",
			"-t nat -R REDIAL-10.96.0.32_28 2 -j RETURN",
			"-t nat -F REDIAL-10.96.0.32_28",
			"-t nat -A REDIAL-10.96.0.32_28 -j ACCEPT",
			"-t nat -N REDIAL-FOREIGN",
			"-t filter -F REDIAL-INPUT",
			"-t filter -D REDIAL-INPUT 2",
			"save and restore without ours", "-t nat -X",
		} {
			switch damage {
			case "save and restore without ours": // as firewalld does
				sh(t, node, fmt.Sprintf("iptables-%[1]s-save | grep -v REDIAL | iptables-%[1]s-restore", mode))
			case "-t nat -X":
				sh(t, node, fmt.Sprintf("iptables-%[1]s -t nat -F; iptables-%[1]s -t nat -X", mode))
			default:
				sh(t, node, fmt.Sprintf("iptables-%s %s", mode, damage))
			}
			assert.False(t, verify(t, r), damage)
			assert.False(t, verify(t, r), "%s: noticed only once", damage)
			require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}), damage)
			assert.True(t, verify(t, r), damage)
			assert.Equal(t, want, sortedLines(dumpAll(t, mode)), damage)
			repairs++
			assert.Equal(t, repairs, r.Stats().IPv4.Repairs, damage)
		}
		_, err := ask(node, bindings[33].VIP)
		assert.NoError(t, err)
		assert.Zero(t, r.Stats().IPv6.Repairs)
	})
}

// TestDamageIsHealedByAnyChange: a Commit that changes something must not trust that the rest is still there.
func TestDamageIsHealedByAnyChange(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		r := start(t, testConfig(mode))
		bindings := twoFamilies()
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
		for i, damage := range []string{"-F", "-t nat -F", "-t nat -D OUTPUT 1", "-t nat -D REDIAL-10.96.0.128_28 2", "-t nat -A REDIAL-SERVICES -j ACCEPT",
			"-t nat -D REDIAL-OUTPUT 1"} {
			sh(t, node, fmt.Sprintf("iptables-%s %s", mode, damage))
			bindings[0].Listen = wildcard(false, uint16(61000+i))
			require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}), damage)
			got := sortedLines(dumpAll(t, mode))
			fresh := start(t, testConfig(mode))
			require.NoError(t, fresh.Commit(t.Context(), intercept.State{Bindings: bindings}))
			assert.Equal(t, sortedLines(dumpAll(t, mode)), got, damage)
			require.True(t, verify(t, r), "a whole write of the same leaves nothing to repair")
		}
	})
}

func TestChangesOfOthersAreNoDamage(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		r := start(t, testConfig(mode))
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: twoFamilies()}))
		for _, change := range []string{
			"-t nat -N OTHER", "-t nat -I PREROUTING -j OTHER", "-t nat -I OUTPUT -m comment --comment 'near REDIAL-OUTPUT' -j OTHER",
			"-A INPUT -p tcp --dport 22 -j ACCEPT", "-P FORWARD DROP", "-t mangle -A PREROUTING -j MARK --set-mark 1", "-t nat -Z",
		} {
			sh(t, node, fmt.Sprintf("iptables-%s %s", mode, change))
			assert.True(t, verify(t, r), change)
		}
		assert.Zero(t, r.Stats().IPv4.Repairs)
	})
}

// TestLeftoversOfAnEarlierProcess: other ports, Services that are gone, a deeper tree, jumps spelled differently.
func TestLeftoversOfAnEarlierProcess(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		now := manyServices(3, false)
		require.NoError(t, start(t, testConfig(mode)).Commit(t.Context(), intercept.State{Bindings: now}))
		want := sortedLines(dump(t, mode, false, "nat"))

		old := append(manyServices(600, false), randomBindings(newRandom(), 300, false)...)
		require.NoError(t, start(t, testConfig(mode)).Commit(t.Context(), intercept.State{Bindings: old}))
		sh(t, node, fmt.Sprintf("iptables-%[1]s -t nat -N REDIAL-OLDNAME; iptables-%[1]s -t nat -A OUTPUT -p tcp -j REDIAL-OLDNAME; "+
			"iptables-%[1]s -t nat -A OUTPUT -j REDIAL-OUTPUT", mode))

		s := newSpy()
		r := startWith(t, testConfig(mode), s)
		s.reset()
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: now}))
		assert.Equal(t, 1, s.restores["iptables-"+string(mode)+"-restore"], "one write takes all of it away")
		assert.Equal(t, want, sortedLines(dump(t, mode, false, "nat")))

		// Without a port range any more, the guard goes too.
		cfg := testConfig(mode)
		cfg.ProxyPorts = intercept.PortRange{}
		require.NoError(t, start(t, cfg).Commit(t.Context(), intercept.State{Bindings: now}))
		assert.NotContains(t, dump(t, mode, false, "filter"), prefix)
	})
}

// TestForeignReferenceToStaleChain: somebody's rule keeps one of our old chains from being deleted.
func TestForeignReferenceToStaleChain(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		r := start(t, testConfig(mode))
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: manyServices(600, false)}))
		sh(t, node, fmt.Sprintf("iptables-%[1]s -t nat -N OTHER; iptables-%[1]s -t nat -A OTHER -j REDIAL-10.96.1.0_24", mode))
		filter := dump(t, mode, false, "filter")
		sh(t, node, fmt.Sprintf("iptables-%s -F", mode)) // which is written before the table with that rule
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: manyServices(3, false)}))
		require.True(t, verify(t, r))
		assert.Equal(t, filter, dump(t, mode, false, "filter"), "each jump is there once")
		got := dump(t, mode, false, "nat")
		assert.Equal(t, 3, strings.Count(got, "--to-ports"))
		assert.Contains(t, got, "-A OTHER -j REDIAL-10.96.1.0_24\n")
		require.NoError(t, r.Cleanup(t.Context()))
		assert.NotContains(t, dump(t, mode, false, "nat"), prefix)
	})
}

func TestRouteLocalnetIsNotTouched(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, _ *lab.Host) {
		r := start(t, testConfig(ModeNFT))
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: everyKind()}))
		for _, device := range []string{"all", "default", "lo", "to-world"} {
			value, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + device + "/route_localnet")
			require.NoError(t, err)
			assert.Equal(t, "0\n", string(value), device)
		}
	})
}
