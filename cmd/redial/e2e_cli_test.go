package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/iptables"
	"redial/proxy/admin"
	"redial/proxy/intercept/lab"
)

func TestStatusOutput(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		b := addBackend(t, node, "b", 2)
		b.refuse()
		r := startRedial(t, manifests(
			service("web", "{type: NodePort, clusterIP: 198.18.100.1, externalIPs: [198.18.110.1], ports: [{name: http, port: 80, nodePort: 30080}]}"),
			endpoints("web", "[{name: http, port: 8080}]", ip4(1), ip4(2)),
			web("empty", "198.18.100.2"),
			service("dns", "{clusterIP: 198.18.100.3, ports: [{port: 53, protocol: SCTP}]}"),
			service("name", "{type: ExternalName, externalName: example.com}")))
		s := r.awaitServed("web")
		for range 4 {
			assertAnswers(t, node, clusterIP1+":80", "a")
		}
		live := mustDial(t, node, "127.0.0.1:30080")
		r.await("one live", func(s *status) bool { return s.front("web").Stats.Active == 1 })
		retried := r.status().front("web").Stats.Retried
		assert.NotZero(t, retried)

		for _, line := range []string{
			fmt.Sprintf(`redial dev.*, pid %d, up \d+s, iptables \S+ \(nft\)`, r.cmd.Process.Pid),
			`SERVICE +PORT +ADDRESSES +PROXY PORT +CLIENTS +BACKENDS +LIVE +TOTAL +RETRIED +FAILED +NOTES`,
			`1 of at most \d+ connections, 0 of \d+ UDP sessions(, backends ejected: 1)?`,
			fmt.Sprintf(`default/web +http 80/TCP +198\.18\.100\.1,198\.18\.110\.1,\*:30080 +%d +served +2/2 +1 +5 +%d +0( +1 ejected)?`, s.front("web").ProxyPort, retried),
			`default/empty +80/TCP +198\.18\.100\.2 +\d+ +refused +0/0 +0 +0 +0 +0`,
			`default/name +- +skipped: ExternalName`,
			`default/dns +53/SCTP +not served`,
			`default/dns: UnsupportedProtocol: SCTP is not relayed.*`,
		} {
			assertLine(t, line, statusOf(t, r))
		}
		assert.NotContains(t, statusOf(t, r), "LAST ERROR")
		wide := statusOf(t, r, "-o", "wide")
		assertLine(t, `default/web +http 80/TCP +198\.18\.1\.2:8080 +ready +1 +1 +5 +0 +[\d.]+[mµ]?s +-`, wide)
		assertLine(t, fmt.Sprintf(`default/web +http 80/TCP +198\.18\.2\.2:8080 +(ready|ejected) +1 +0 +0 +%d +- +(\d+s ago|ejected for .*, tested in .*|.*being tested): .*connection refused`, retried), wide)
		assertLine(t, fmt.Sprintf(`default/web +http 80/TCP +rr +- +accepted 5, connected 5, retried %d, retries %[1]d, active 1.*`, retried), wide)
		assertLine(t, `default/empty +80/TCP +rr +- +all 0`, wide)

		one := statusOf(t, r, "web")
		assert.Equal(t, 2, strings.Count(one, ":8080 "), "wide: %s", one)
		assert.NotContains(t, one, "default/empty")
		assert.NotContains(t, one, "PROBLEMS")
		assert.Contains(t, statusOf(t, r, "default/dns"), "UnsupportedProtocol")
		out, err := runRedial("status", "--admin-socket", r.socket, "other/web")
		require.Error(t, err)
		assert.Contains(t, out, "no Service other/web among the 4")

		var all status
		require.NoError(t, json.Unmarshal([]byte(statusOf(t, r, "-o", "json")), &all))
		assert.Equal(t, r.cmd.Process.Pid, all.PID)
		assert.Equal(t, r.dir, all.Manifests)
		assert.Len(t, all.Services, 4)
		require.NoError(t, live.echo("still there"))

		r.kill()
		out, err = runRedial("status", "--admin-socket", r.socket)
		require.Error(t, err)
		assert.Contains(t, out, "no proxy answers on "+r.socket)
		out, err = runRedial("status", "-o", "yaml", "--admin-socket", r.socket)
		require.Error(t, err)
		assert.Contains(t, out, "want json or wide")
	})
}

func statusOf(t *testing.T, r *instance, args ...string) string {
	t.Helper()
	out, err := runRedial(append([]string{"status", "--admin-socket", r.socket}, args...)...)
	require.NoError(t, err, out)
	return out
}

// assertLine expects a whole line to match.
func assertLine(t *testing.T, pattern, out string) {
	t.Helper()
	assert.Regexp(t, regexp.MustCompile(`(?m)^`+pattern+`\s*$`), out)
}

func TestSteeringSurvivesJSON(t *testing.T) {
	t.Parallel()
	in := newSteering(iptables.Stats{
		Mode: iptables.ModeLegacy, Version: "1.8.9",
		IPv4: iptables.FamilyStats{Target: "REDIRECT", Rules: 7, FilterErr: errors.Join(errors.New("no match"), errors.New("no conntrack"))},
		IPv6: iptables.FamilyStats{Err: errors.New("no nat table")},
	}, nil)
	b, err := json.Marshal(in)
	require.NoError(t, err)
	var out *steering
	require.NoError(t, json.Unmarshal(b, &out))
	assert.Equal(t, in, out)
	var text strings.Builder
	out.print(&text)
	assert.Equal(t, "IPv4 PROXY PORTS ARE NOT GUARDED against direct access: no match; no conntrack\n"+
		"IPv6 IS NOT STEERED: no nat table\n", text.String())
}

func TestVersion(t *testing.T) {
	t.Parallel()
	out, err := runRedial("version")
	require.NoError(t, err, out)
	assert.Regexp(t, `^redial dev( [0-9a-f]{12}(\+changes)?)? go1\.\d+\S* linux/\w+\n$`, out)
}

func TestCommandLineErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		want string
	}{
		{"", "--manifests DIR"},
		{"--manifests", "needs an argument"},
		{"--manifests . stray", `unknown command "stray"`},
		{"--manifests . --no-such-flag", "unknown flag: --no-such-flag"},
		{"--manifests . --interception ipvs", "want one of auto, iptables, local, none"},
		{"--manifests . --dial-timeout 5", "invalid argument"},
		{"--manifests . --log-level loud", "--log-level"},
		{"--manifests /does/not/exist --interception none --admin-socket " + filepath.Join(t.TempDir(), "s"), "/does/not/exist"},
		{"status --admin-socket /does/not/exist web", "no proxy answers"},
		{"cleanup --iptables-mode both", "want one of auto, nft, legacy"},
	} {
		out, err := runRedial(strings.Fields(c.args)...)
		if assert.Error(t, err, "redial %s\n%s", c.args, out) {
			assert.Contains(t, out, c.want, "redial %s", c.args)
			assert.NotContains(t, out, "goroutine ", "redial %s", c.args)
		}
	}
}

func TestValidateOptions(t *testing.T) {
	t.Parallel()
	require.NoError(t, defaultOptions().validate())
	for want, change := range map[string]func(*options){
		`--interception "x": want one of auto, iptables, local, none`: func(o *options) { o.interception = "x" },
		`--iptables-mode "x": want one of auto, nft`:                  func(o *options) { o.iptablesMode = "x" },
		`--iptables-target "x": want one of auto, redirect`:           func(o *options) { o.iptablesTarget = "x" },
		`--log-format "x": want one of text, json`:                    func(o *options) { o.logFormat = "x" },
		"--iptables-lock-wait 0s: must be more than 0":                func(o *options) { o.lockWait = 0 },
		"--iptables-min-sync-period -1s":                              func(o *options) { o.minSyncPeriod = -time.Second },
		"--iptables-sync-period 0s":                                   func(o *options) { o.syncPeriod = 0 },
		"--dial-timeout 0s":                                           func(o *options) { o.dialTimeout = 0 },
		"--dial-try-timeout 0s":                                       func(o *options) { o.tryTimeout = 0 },
		"--half-close-timeout 0s":                                     func(o *options) { o.halfClose = 0 },
		"--tcp-keepalive 0s":                                          func(o *options) { o.keepAlive = 0 },
		"--tcp-user-timeout 0s":                                       func(o *options) { o.userTimeout = 0 },
		"--drain-timeout -1s: must not be negative":                   func(o *options) { o.drainTimeout = -time.Second },
		"--max-connections -1: must not be negative":                  func(o *options) { o.maxConnections = -1 },
		`--proxy-port-range: port range "70000"`:                      func(o *options) { o.portRange = "70000" },
		"--proxy-bind-address":                                        func(o *options) { o.bindAddresses = []string{"localhost"} },
	} {
		o := defaultOptions()
		change(o)
		assert.ErrorContains(t, o.validate(), want)
	}
	two := defaultOptions()
	two.dialTimeout, two.logFormat = 0, "x"
	err := two.validate()
	assert.ErrorContains(t, err, "--dial-timeout")
	assert.ErrorContains(t, err, "--log-format", "all that is wrong is said at once")

	bind := defaultOptions()
	bind.bindAddresses = []string{"::ffff:198.18.0.1", "2001:db8::1"}
	require.NoError(t, bind.validate())
	assert.Equal(t, "198.18.0.1", bind.bind4.String())
	assert.Equal(t, "2001:db8::1", bind.bind6.String())
}

// Without interception nothing needs a privilege.
func TestUnprivileged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var addresses []string
	for range 2 {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		require.NoError(t, err)
		b := &backend{t: t, name: l.Addr().String(), listener: l}
		go b.acceptLoop(l)
		t.Cleanup(b.refuse)
		addresses = append(addresses, l.Addr().String())
	}
	var slices []string
	for i, a := range addresses {
		_, port, _ := net.SplitHostPort(a)
		slices = append(slices, strings.Replace(endpoints("web", "[{port: "+port+"}]", "127.0.0.1"), "web-ipv4", fmt.Sprintf("web-%d", i), 1))
	}
	writeFile(t, filepath.Join(dir, "web.yaml"), manifests(append(slices, service("web", "{clusterIP: 198.18.100.1, ports: [{port: 80}]}"))...))
	r := newInstance(t, dir, "--interception=none", "--log-format=json", "--log-level=debug")
	r.asNobody()
	r.start()
	s := r.awaitServed("web")
	front := s.front("web")
	require.Equal(t, []string{fmt.Sprintf("127.0.0.1:%d", front.ProxyPort)}, front.Listen)
	seen := map[string]int{}
	for range 4 {
		c, err := net.Dial("tcp4", front.Listen[0])
		require.NoError(t, err)
		line, err := bufio.NewReader(c).ReadString('\n')
		require.NoError(t, err)
		seen[strings.TrimSpace(line)]++
		c.Close()
	}
	assert.Equal(t, map[string]int{addresses[0]: 2, addresses[1]: 2}, seen)
	assertLine(t, `.*, interception none`, statusOf(t, r))

	info, err := os.Stat(r.socket)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "only its owner may ask")

	r.signal(unix.SIGINT)
	require.NoError(t, r.wait())
	require.Error(t, admin.Get(context.Background(), r.socket, new(status)))
	lines := bytes.Split(bytes.TrimSpace([]byte(r.log.String())), []byte("\n"))
	assert.Greater(t, len(lines), 4)
	for _, line := range lines {
		var entry struct{ Level, Msg, Time string }
		require.NoError(t, json.Unmarshal(line, &entry), "%s", line)
		assert.NotEmpty(t, entry.Level+entry.Time)
		assert.NotEmpty(t, entry.Msg, "%s", line)
	}
}
