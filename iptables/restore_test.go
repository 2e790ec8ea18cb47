package iptables

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

// twoFamilies is 200 Services of both families.
func twoFamilies() []intercept.Binding {
	return append(manyServices(200, false), manyServices(200, true)...)
}

func TestOneRestorePerFamilyAndCommit(t *testing.T) {
	inModes(t, func(t *testing.T, _ *lab.Host, mode Mode) {
		s := newSpy()
		r := startWith(t, testConfig(mode), s)
		each := map[string]int{"iptables-" + string(mode) + "-restore": 1, "ip6tables-" + string(mode) + "-restore": 1}

		s.reset()
		bindings := twoFamilies()
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
		assert.Equal(t, each, s.restores, "first")

		s.reset()
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
		assert.Empty(t, s.restores, "unchanged")
		if mode == ModeNFT {
			// The ruleset's generation also moved with the write of the other family; it has been looked at since.
			s.reset()
			require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
			assert.Zero(t, s.execs, "unchanged, and so is everything else in the kernel")
		}

		bindings[7].Listen = wildcard(false, 61999)
		bindings[207].Listen = wildcard(true, 61999)
		s.reset()
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
		assert.Equal(t, each, s.restores, "both families changed")

		s.reset()
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings[:399]}))
		delete(each, "iptables-"+string(mode)+"-restore")
		assert.Equal(t, each, s.restores, "one family changed")
	})
}

// TestChangesAddUp compares the kernel's rules after many small writes with those of one whole write.
func TestChangesAddUp(t *testing.T) {
	for _, c := range []struct {
		name    string
		every   int // restore that fails
		changes int
	}{{"all succeed", 0, 20}, {"every second restore fails", 2, 40}} {
		t.Run(c.name, func(t *testing.T) {
			inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
				s := newSpy()
				r := startWith(t, testConfig(mode), s)
				calls := 0
				s.refuse = func(string) string {
					if calls++; c.every > 0 && calls%c.every == 0 {
						return "line 3 failed"
					}
					return ""
				}
				random := rand.New(rand.NewPCG(1, 2))
				pool := append(randomBindings(random, 40, false), randomBindings(random, 40, true)...)
				var now intercept.State
				for range c.changes {
					now.Bindings = now.Bindings[:0]
					for _, b := range pool {
						if random.IntN(3) > 0 {
							now.Bindings = append(now.Bindings, b)
						}
					}
					for range 1 + random.IntN(3) {
						b := &pool[random.IntN(len(pool))]
						listener := wildcard(b.VIP.Addr.Is6(), uint16(10+random.IntN(60000)))
						switch random.IntN(6) {
						case 0:
							b.Listen = nowhere
						case 1:
							b.Local = listener
						case 2:
							b.Sources = prefixes("198.18.1.0/24", "2001:db8:1::/64")[:random.IntN(3)]
						case 3:
							b.Local, b.Sources = nowhere, nil
							fallthrough
						default:
							b.Listen = listener
						}
					}
					switch random.IntN(5) {
					case 0:
						now.NodePorts = prefixes("198.18.1.0/24", "2001:db8:1::/64", "127.0.0.0/8")[:random.IntN(4)]
					case 1:
						now.Pods = []intercept.PodSource{{Interface: fmt.Sprintf("veth%d+", random.IntN(9))}}
					case 2:
						now.NoLocalhostNodePorts = !now.NoLocalhostNodePorts
					}
					if err := r.Commit(t.Context(), now); err != nil {
						require.NotZero(t, c.every, err)
						var b *intercept.BindingError
						require.False(t, errors.As(err, &b), "no binding is to blame: %v", err)
					}
					requireSeen(t, r)
				}
				s.refuse = nil
				require.NoError(t, r.Commit(t.Context(), now))
				got := sortedLines(dumpAll(t, mode))
				require.NoError(t, r.Cleanup(t.Context()))
				require.NoError(t, start(t, testConfig(mode)).Commit(t.Context(), now))
				assert.Equal(t, strings.Join(sortedLines(dumpAll(t, mode)), ""), strings.Join(got, ""))
			})
		})
	}
}

// requireSeen compares what is believed to be in the kernel with what is.
func requireSeen(t *testing.T, r *Rules) {
	t.Helper()
	for _, f := range r.families {
		if f.applied == nil {
			continue
		}
		now, err := f.read(t.Context())
		require.NoError(t, err)
		for _, name := range ourTables {
			require.True(t, now[name].equal(f.seen[name]), "%s %s: have %v, believe %v", f.name(), name, now[name], f.seen[name])
		}
	}
}

// By the ruleset's generation all families know that nobody else has written meanwhile.
func TestChangesAreNotReadBack(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		s := newSpy()
		r := startWith(t, testConfig(ModeNFT), s)
		bindings := twoFamilies()
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
		require.True(t, verify(t, r))
		var healthChecks []uint16
		commit := func(listen int) {
			bindings[7].Listen = wildcard(false, uint16(listen))
			s.reset()
			require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings, HealthChecks: healthChecks}))
			require.True(t, verify(t, r))
		}
		for i := range 3 {
			commit(61997 + i)
			assert.Equal(t, map[string]int{"iptables-nft-restore": 1}, s.restores)
			assert.Equal(t, 1, s.execs, "nothing else is run")
			requireSeen(t, r)
		}
		// Rules of a kind that there was none of.
		bindings[8].Sources, healthChecks = prefixes("0.0.0.0/1"), []uint16{32000}
		commit(61995)
		requireSeen(t, r)
		// Somebody else writes just before we do.
		sh(t, node, "iptables-nft -A FORWARD -j ACCEPT")
		commit(61996)
		assert.Greater(t, s.execs, 1)
		requireSeen(t, r)
	})
}

// Rules of all kinds are written as iptables-save shows them: what was written is then known without being read back.
func TestRulesAreSpelledAsSaved(t *testing.T) {
	for _, target := range []Target{TargetRedirect, TargetDNAT} {
		inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
			sh(t, node, "ip addr add 198.18.255.1/32 dev lo; ip addr add 2001:db8:ff::1/128 dev lo nodad")
			s := policies()
			for _, b := range s.Bindings {
				if b.VIP.NodePort() {
					continue
				}
				b.Sources = prefixes("198.18.0.0/15", "2001:db8::/32") // the node's own addresses are among them
				b.VIP.Port = 81
				s.Bindings = append(s.Bindings, b)
			}
			s.NoLocalhostNodePorts = true
			for ports, healthChecks := range map[intercept.PortRange][]uint16{testPorts: {32000}, {First: 61000, Last: 61000}: {32000, 32001}} {
				cfg := testConfig(mode)
				cfg.Target, cfg.ProxyPorts, s.HealthChecks = target, ports, healthChecks
				r := start(t, cfg)
				require.NoError(t, r.Commit(t.Context(), s))
				for _, f := range r.families {
					for _, table := range f.applied.tables() {
						for _, c := range table.chains {
							assert.Equal(t, printOf(c.rules), f.seen[table.name].chains[c.name], "%s %s: %q", f.name(), c.name, c.rules)
						}
					}
				}
			}
		})
	}
}

// sortedLines forgives the order of chains, which the kernel keeps as they were made, but not that of rules.
func sortedLines(dump string) []string {
	var lines []string
	place := map[string]int{}
	for line := range strings.Lines(dump) {
		if fields := strings.Fields(line); fields[0] == "-A" {
			place[fields[1]]++
			line = fmt.Sprintf("%s #%d %s", fields[1], place[fields[1]], line)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

func TestRefusedRulesDoNotHoldUpOthers(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		serve(t, 61000)
		s := newSpy()
		h := newHost(s)
		clock := h.now()
		h.now = func() time.Time { return clock }
		r, err := newRules(t.Context(), testConfig(mode), h)
		require.NoError(t, err)
		bad := []string{"-d 10.96.0.33/32", "-d 10.96.0.150/32", "-d fd00:10:96::7/128"}
		s.refuse = func(input string) string {
			for _, b := range bad {
				if strings.Contains(input, b+" ") {
					return "line 7: RULE_APPEND failed (Invalid argument)"
				}
			}
			return ""
		}
		bindings := twoFamilies()
		for i := range bindings {
			bindings[i].Listen = wildcard(bindings[i].VIP.Addr.Is6(), 61000)
		}
		refused := func() []string {
			var all []string
			if joined, ok := r.Commit(t.Context(), intercept.State{Bindings: bindings}).(interface{ Unwrap() []error }); ok {
				for _, err := range joined.Unwrap() {
					var b *intercept.BindingError
					require.ErrorAs(t, err, &b)
					assert.ErrorContains(t, err, "Invalid argument")
					all = append(all, b.Binding.VIP.String())
				}
			}
			return all
		}
		all := []string{"10.96.0.33:80/tcp", "10.96.0.150:80/tcp", "[fd00:10:96::7]:80/tcp"}
		assert.Equal(t, all, refused())
		for _, b := range bindings {
			if v := b.VIP; !slices.Contains(all, v.String()) && v.Addr.As16()[15]%16 == 3 {
				_, err := ask(node, v)
				require.NoError(t, err, "%s", v)
			}
		}
		assert.Equal(t, 2, r.Stats().IPv4.Quarantined)
		assert.Equal(t, 1, r.Stats().IPv6.Quarantined)
		assert.NotContains(t, dumpAll(t, mode), scratchChain)

		s.reset()
		assert.Equal(t, all, refused(), "reported again")
		assert.Empty(t, s.restores, "but not tried again")
		bindings[0].Listen = wildcard(false, 61001)
		assert.Equal(t, all, refused())
		assert.Equal(t, map[string]int{"iptables-" + string(mode) + "-restore": 1}, s.restores, "nor with changes of others")

		bad = bad[1:]
		clock = clock.Add(retryAfter)
		assert.Equal(t, all[1:], refused(), "until some time has passed")
		bad = nil
		clock = clock.Add(retryAfter)
		assert.Empty(t, refused())
		assert.Zero(t, r.Stats().IPv4.Quarantined)
	})
}

// The search for a culprit must not try rules in chains that serve.
func TestRefusedPolicyDoesNotHoldUpOthers(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		serve(t, ownPort)
		s := newSpy()
		r := startWith(t, testConfig(mode), s)
		good, bad := bind("10.96.0.1", 80, intercept.TCP, publicPort, "good"), bind("10.96.0.2", 80, intercept.TCP, publicPort, "bad")
		good.Local, bad.Local, bad.Sources = wildcard(false, ownPort), wildcard(false, ownPort), prefixes("0.0.0.0/1", "198.18.0.0/15")
		bindings := []intercept.Binding{good, bad}
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
		s.refuse = func(input string) string {
			if strings.Contains(input, "-s 198.18.0.0/16") {
				return "line 7: RULE_APPEND failed (Invalid argument)"
			}
			if strings.Contains(input, scratchChain) { // in the midst of the search
				for _, b := range bindings {
					_, err := ask(node, b.VIP)
					require.NoError(t, err)
				}
			}
			return ""
		}
		bad.Sources = prefixes("0.0.0.0/1", "198.18.0.0/16")
		for range 2 {
			err := r.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{good, bad}})
			var b *intercept.BindingError
			require.ErrorAs(t, err, &b)
			assert.Equal(t, "bad", b.Binding.Owner)
			assert.Equal(t, 1, r.Stats().IPv4.Quarantined)
			_, err = ask(node, good.VIP)
			require.NoError(t, err)
		}
		bad.Sources = bad.Sources[:1]
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{good, bad}}), "other rules are tried at once")
	})
}

func TestRefusalOfEverythingBlamesNoBinding(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		s := newSpy()
		r := startWith(t, testConfig(ModeNFT), s)
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: twoFamilies()}))
		before := dumpAll(t, ModeNFT)
		s.refuse = func(string) string { return "line 1 failed: No space left on device" }
		s.reset()
		err := r.Commit(t.Context(), intercept.State{Bindings: twoFamilies()[10:]})
		require.Error(t, err)
		var b *intercept.BindingError
		assert.False(t, errors.As(err, &b))
		assert.Equal(t, before, dumpAll(t, ModeNFT))
		assert.Less(t, s.execs, 20, "no search where even a harmless rule is refused")
	})
}

func TestForeignOwnersAreOnlyComments(t *testing.T) {
	inModes(t, func(t *testing.T, _ *lab.Host, mode Mode) {
		var bindings []intercept.Binding
		for i, owner := range []string{"", "\"", "\\", "a\nCOMMIT\n*filter\n:INPUT DROP [0:0]", "!", "-j DROP", "'", "\x00", "ü",
			strings.Repeat("long/", 1000), "a b", "%s", "$(reboot)", "--", "-", "`"} {
			bindings = append(bindings, bind(fmt.Sprintf("10.96.0.%d", i+1), 80, intercept.TCP, 61000, owner))
			bindings = append(bindings, bind(fmt.Sprintf("fd00:10:96::%d", i+1), 80, intercept.TCP, 61000, owner))
		}
		r := start(t, testConfig(mode))
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
		assert.Equal(t, len(bindings), strings.Count(dumpAll(t, mode), "--to-ports"))
		ok, err := r.Verify(t.Context())
		require.NoError(t, err)
		assert.True(t, ok)
	})
}

func TestServicesWorkWithoutFilterRules(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		serve(t, 61000)
		s := newSpy()
		r := startWith(t, testConfig(mode), s)
		s.refuse = func(input string) string {
			if strings.Contains(input, "conntrack") {
				return "Couldn't load match `conntrack':No such file or directory"
			}
			return ""
		}
		bindings := []intercept.Binding{bind("10.96.0.1", 80, intercept.TCP, 61000, "ns/web")}
		dropped := bind("10.96.0.2", 80, intercept.TCP, 0, "ns/dropped")
		dropped.Listen = nowhere
		bindings = append(bindings, dropped)
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
		assert.ErrorContains(t, r.Stats().IPv4.FilterErr, "conntrack")
		_, err := ask(node, bindings[0].VIP)
		require.NoError(t, err)
		_, err = ask(node, dropped.VIP)
		assert.ErrorIs(t, err, syscall.ECONNREFUSED, "the next best to silence")
		ok, err := r.Verify(t.Context())
		require.NoError(t, err)
		assert.True(t, ok)
		s.refuse = nil // the module was loaded
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
		assert.NoError(t, r.Stats().IPv4.FilterErr)
		assert.Contains(t, dump(t, mode, false, "filter"), "-j REDIAL-INPUT")
		quiet := call(t, node, []intercept.VIP{dropped.VIP})
		_, err = ask(node, bindings[0].VIP)
		require.NoError(t, err)
		quiet.requireUnbroken(t)
	})
}

// Rules of another kind than those that are there may be the first to be refused.
func TestFilterRulesRefusedLater(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		serve(t, 61000)
		s := newSpy()
		r := startWith(t, testConfig(mode), s)
		bindings := []intercept.Binding{bind("10.96.0.1", 80, intercept.TCP, 61000, "ns/web")}
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
		s.refuse = func(input string) string {
			if strings.Contains(input, "-m addrtype") {
				return "Couldn't load match `addrtype':No such file or directory"
			}
			return ""
		}
		dropped := bind("10.96.0.2", 80, intercept.TCP, 0, "ns/dropped")
		dropped.Listen = nowhere
		bindings = append(bindings, dropped)
		for range 2 {
			require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
			assert.ErrorContains(t, r.Stats().IPv4.FilterErr, "addrtype")
			assert.True(t, verify(t, r))
			_, err := ask(node, bindings[0].VIP)
			require.NoError(t, err)
		}
		s.refuse = nil
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
		assert.NoError(t, r.Stats().IPv4.FilterErr)
		assert.Contains(t, dump(t, mode, false, "filter"), "-j DROP")
	})
}

func TestFamilyWithoutNatTable(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		serve(t, 20000)
		s := newSpy()
		broken := true
		h := newHost(refusing{s, func(name string) bool { return broken && strings.HasPrefix(name, "ip6") }})
		r, err := newRules(t.Context(), testConfig(ModeNFT), h)
		require.NoError(t, err)
		bindings := []intercept.Binding{bind("10.96.0.1", 80, intercept.TCP, 20000, "four"), bind("fd00::1", 80, intercept.TCP, 20000, "six")}
		err = r.Commit(t.Context(), intercept.State{Bindings: bindings})
		var b *intercept.BindingError
		require.ErrorAs(t, err, &b)
		assert.Equal(t, "six", b.Binding.Owner)
		assert.ErrorContains(t, err, "IPv6 nat table does not work")
		assert.Error(t, r.Stats().IPv6.Err)
		_, err = ask(node, bindings[0].VIP)
		require.NoError(t, err)
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings[:1]}), "nobody misses the family")

		broken = false // the module was loaded
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
		_, err = ask(node, bindings[1].VIP)
		require.NoError(t, err)
	})
}
