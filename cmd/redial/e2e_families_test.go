package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy/intercept/lab"
)

// onlyPrograms has an instance that is not started yet find the iptables programs of one family, those of the other fail as
// without the kernel's table, or are not there.
func (r *instance) onlyPrograms(works, fails string) *instance {
	r.t.Helper()
	bin := r.t.TempDir()
	programs, err := filepath.Glob("/usr/sbin/" + works + "*")
	require.NoError(r.t, err)
	require.NotEmpty(r.t, programs)
	for _, p := range programs {
		require.NoError(r.t, os.Symlink(p, filepath.Join(bin, filepath.Base(p))))
	}
	if fails != "" {
		const script = `#!/bin/sh
case "$*" in *--version*) echo "%[1]s v1.8.9 (nf_tables)"; exit;; esac
echo "%[1]s v1.8.9: can't initialize %[1]s table 'nat': Table does not exist (do you need to insmod?)" >&2
exit 3
`
		for _, name := range []string{"", "-save", "-restore"} {
			name = fails + name
			require.NoError(r.t, os.WriteFile(filepath.Join(bin, name), fmt.Appendf(nil, script, name), 0o755))
		}
	}
	r.cmd.Env = append(r.cmd.Env, "PATH="+bin)
	return r
}

// Where iptables works for one family only, the other is served without, and a process that finds both working takes over.
func TestEachFamilyByWhatWorks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ works, fails, without, why string }{
		"IPv6 programs are missing": {"iptables", "", "IPv6", "ip6tables.*not found"},
		"no IPv6 nat table":         {"iptables", "ip6tables", "IPv6", "Table does not exist"},
		"no IPv4 nat table":         {"ip6tables", "iptables", "IPv4", "Table does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lab.Run(t, func(t *testing.T, node *lab.Host) {
				a := addBackend(t, node, "a", 1)
				answerOn(t, a.host, "a", ":8053")
				client := addHost(t, node, "client", 9)
				before := addressing(t, node)
				dir := t.TempDir()
				writeFile(t, dir+"/all.yaml", everything())
				r := newInstance(t, dir, "--service-cidr=198.18.100.0/24,2001:db8:100::/108").onlyPrograms(c.works, c.fails)
				r.start()
				r.awaitServed("web", "dns")
				assertEverythingAnswers(t, client, a.host, node)
				assert.Equal(t, 1, strings.Count(r.log.String(), "iptables does not work"), "said once")
				for _, svc := range r.status().Services {
					assert.Empty(t, svc.Problems)
				}
				out := statusOf(t, r)
				assertLine(t, `.*, iptables .*`, out)
				assertLine(t, c.without+` Services are listened for on their own addresses, by \d+ `+c.without+` routes`, out)
				assertLine(t, `IPTABLES IS NOT USED for `+c.without+`: .*`+c.why+`.*`, out)
				assert.NotContains(t, out, "NOT STEERED")
				during := addressing(t, node)
				if c.without == "IPv6" {
					assert.Contains(t, during, "2001:db8:100::/108")
					assert.NotContains(t, during, "198.18.100.0/24", "that family has rules")
				} else {
					assert.Contains(t, during, "198.18.100.0/24")
					assert.NotContains(t, during, "2001:db8:100::/108", "that family has rules")
				}

				r.signal(unix.SIGTERM)
				require.NoError(t, r.wait())
				next := newInstance(t, dir)
				next.start()
				next.awaitServed("web", "dns")
				assertEverythingAnswers(t, client)
				assert.Equal(t, before, addressing(t, node))
				assert.NotContains(t, statusOf(t, next), "IPTABLES IS NOT USED")
			})
		})
	}
}

// What cannot be kept from anybody is closed in the family that has no rules, and served in the other.
func TestSourceRangesWhereOneFamilyHasRules(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		client := addHost(t, node, "client", 9)
		dir := t.TempDir()
		writeFile(t, dir+"/all.yaml", manifests(service("web", `
  type: LoadBalancer
  clusterIPs: [198.18.100.1, "2001:db8:100::1"]
  loadBalancerSourceRanges: [198.18.9.0/24, "2001:db8:9::/64"]
  ports: [{port: 80}]
status:
  loadBalancer:
    ingress: [{ip: 198.18.120.1}, {ip: "2001:db8:120::1"}]`),
			endpoints("web", "[{port: 8080}]", ip4(1)), endpoints("web", "[{port: 8080}]", ip6(1))))
		r := newInstance(t, dir).onlyPrograms("iptables", "")
		r.start()
		r.awaitServed("web")
		assert.Contains(t, r.awaitProblem("web", "CannotRestrict").Message, "2001:db8:120::1")
		assertAnswers(t, client, "198.18.120.1:80", "a")
		assertAnswers(t, client, "[2001:db8:100::1]:80", "a")
		_, err := node.Output("ip", "route", "add", "unreachable", "2001:db8:120::1/128")
		require.NoError(t, err)
		_, err = ask(client, "[2001:db8:120::1]:80")
		assert.Error(t, err)
	})
}

// Who asks for iptables gets nothing else: the family that works is served, and the status says what is missing.
func TestNodeWithoutIP6Tables(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, "all.yaml"), manifests(web("web", clusterIP1, ip4(1)), service("six", `{clusterIP: "2001:db8:100::6", ports: [{port: 80}]}`)))
		r := newInstance(t, dir, "--interception=iptables").onlyPrograms("iptables", "")
		r.start()
		r.awaitServed("web")
		assertAnswers(t, node, clusterIP1+":80", "a")
		assert.Contains(t, r.awaitProblem("six", "SteeringFailed").Message, "ip6tables")
		assert.Equal(t, 1, strings.Count(r.log.String(), "this family is not steered"))
		assert.Empty(t, r.status().IPTables.IPv4.Error)
		assert.Contains(t, r.status().IPTables.IPv6.Error, "ip6tables")
		assertLine(t, "IPv6 IS NOT STEERED: .*ip6tables.*", statusOf(t, r))
	})
}
