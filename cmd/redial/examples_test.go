package main

import (
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy"
	"redial/proxy/intercept/lab"
)

const examplesDir = "../../examples"

// Every example is loaded as it is, stand-ins are put where it says that its backends are, and every address that it
// declares is called.
func TestExamples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(examplesDir + "/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			lab.Run(t, func(t *testing.T, node *lab.Host) { runExample(t, node, file) })
		})
	}
}

func runExample(t *testing.T, node *lab.Host, file string, flags ...string) {
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	from, local := addHost(t, node, "client", 9), filepath.Base(file) == "localhost.yaml"
	if local {
		flags, from = []string{"--interception=none"}, node
	}
	r := startRedial(t, string(content), flags...)
	s := r.await("all steered", func(s *status) bool {
		for _, f := range frontsOf(s) {
			if len(f.VIPs) == 0 {
				return false
			}
		}
		return len(frontsOf(s)) > 0
	})
	assert.Empty(t, s.Problems)
	for _, svc := range s.Services {
		assert.Empty(t, svc.Problems)
		assert.Empty(t, svc.Skipped)
	}
	standIn(t, node, s)
	for _, svc := range s.Services {
		for _, p := range svc.Ports {
			for _, f := range p.Fronts {
				want := map[string]int{}
				for _, b := range f.Backends {
					if b.State == proxy.StateReady {
						want[b.Address] = 1
					}
				}
				require.NotEmpty(t, want)
				addresses := addressesOf(f)
				if local {
					addresses = f.Listen
				}
				for _, address := range addresses {
					answers, failures := crowd(len(want), 1, from, address)
					assert.Empty(t, failures, address)
					if p.Affinity > 0 {
						assert.Len(t, answers, 1, "%s: one backend for one client", address)
					} else {
						assert.Equal(t, want, answers, "%s: each backend has its turn", address)
					}
				}
			}
		}
	}
}

func frontsOf(s *status) []proxy.FrontendStatus {
	var all []proxy.FrontendStatus
	for _, svc := range s.Services {
		for _, p := range svc.Ports {
			all = append(all, p.Fronts...)
		}
	}
	return all
}

// addressesOf are what clients on the host at 198.18.9.2 can connect to.
func addressesOf(f proxy.FrontendStatus) []string {
	var all []string
	for _, v := range f.VIPs {
		addr := v.Address
		if addr == "" {
			addr = map[string]string{"IPv4": "198.18.9.1", "IPv6": "2001:db8:9::1"}[string(f.Family)]
		}
		all = append(all, netip.AddrPortFrom(netip.MustParseAddr(addr), v.Port).String())
	}
	return all
}

// standIn serves at every address that is a backend's: on the node if it is a loopback one, else on one host that has
// them all. Each says its address.
func standIn(t *testing.T, node *lab.Host, s *status) {
	t.Helper()
	backends := map[netip.AddrPort]struct{}{}
	addrs := map[netip.Addr]struct{}{}
	for _, f := range frontsOf(s) {
		for _, b := range f.Backends {
			a := netip.MustParseAddrPort(b.Address)
			backends[a] = struct{}{}
			if !a.Addr().IsLoopback() {
				addrs[a.Addr()] = struct{}{}
			}
		}
	}
	var pods *lab.Host
	for _, a := range slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare) {
		if pods == nil {
			pods = addHost(t, node, "pods", 1)
		}
		bits := "/24"
		if a.Is6() {
			bits = "/64"
		}
		require.NoError(t, pods.AddAddress("eth0", a.String()+bits))
	}
	for a := range backends {
		host := pods
		if a.Addr().IsLoopback() {
			host = node
		}
		serveOn(t, host, a.String(), a.String())
		// A new IPv6 address is not found at once: its multicast group is joined in the background.
		awaitAnswer(t, node, a.String(), a.String())
	}
}

func TestExamplesAreListed(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(filepath.Join(examplesDir, "README.md"))
	require.NoError(t, err)
	entries, err := os.ReadDir(examplesDir)
	require.NoError(t, err)
	for _, e := range entries {
		if e.Name() != "README.md" {
			assert.Contains(t, string(readme), "| ["+e.Name()+"]("+e.Name()+") |")
		}
	}
}

// unit reads the settings of the example's systemd unit. None is set twice.
func unit(t *testing.T) map[string]string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(examplesDir, "redial.service"))
	require.NoError(t, err)
	settings := map[string]string{}
	for line := range strings.Lines(string(content)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			assert.NotContains(t, settings, key)
			settings[key] = value
		}
	}
	return settings
}

// unitOptions parses the unit's command line as the program would.
func unitOptions(t *testing.T) (*options, []string) {
	t.Helper()
	args := strings.Fields(unit(t)["ExecStart"])
	require.NotEmpty(t, args)
	assert.Equal(t, "redial", filepath.Base(args[0]))
	o := defaultOptions()
	flags := pflag.NewFlagSet("redial", pflag.ContinueOnError)
	o.addFlags(flags)
	require.NoError(t, flags.Parse(args[1:]))
	require.Empty(t, flags.Args())
	require.NoError(t, o.validate())
	return o, args
}

func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	settings := unit(t)
	o, args := unitOptions(t)
	assert.NotEmpty(t, o.manifests)
	assert.Equal(t, "/run/"+settings["RuntimeDirectory"], filepath.Dir(o.adminSocket), "where the unit may write")
	stop, err := time.ParseDuration(settings["TimeoutStopSec"])
	require.NoError(t, err)
	assert.Greater(t, stop, o.drainTimeout)
	limit, err := strconv.Atoi(settings["LimitNOFILE"])
	require.NoError(t, err)
	assert.Greater(t, limit, 20000)

	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		return
	}
	content, err := os.ReadFile(filepath.Join(examplesDir, "redial.service"))
	require.NoError(t, err)
	self, err := os.Executable() // the program has to exist, and is not installed here
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "redial.service")
	writeFile(t, path, strings.ReplaceAll(string(content), args[0], self))
	out, err := exec.Command("systemd-analyze", "verify", path).CombinedOutput()
	assert.NoError(t, err, "%s", out)
	assert.NotContains(t, string(out), "redial.service:", "complaints about the unit")
}

// What the unit says about privileges is enough.
func TestSystemdUnitsPrivileges(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	require.Equal(t, "CAP_NET_ADMIN CAP_NET_RAW", unit(t)["AmbientCapabilities"])
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		dir := t.TempDir()
		for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
			require.NoError(t, os.Chmod(d, 0o755))
		}
		writeFile(t, filepath.Join(dir, "web.yaml"), manifests(
			service("web", `{type: NodePort, clusterIPs: [198.18.100.1, "2001:db8:100::1"], ports: [{port: 80, nodePort: 30080}]}`),
			endpoints("web", "[{port: 8080}]", ip4(1)), endpoints("web", "[{port: 8080}]", ip6(1))))
		r := newInstance(t, dir)
		require.NoError(t, os.Chmod(filepath.Dir(r.socket), 0o777))
		r.cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential:  &syscall.Credential{Uid: 65534, Gid: 65534},
			AmbientCaps: []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW},
		}
		r.start()
		r.awaitServed("web")
		for _, address := range []string{"198.18.100.1:80", "[2001:db8:100::1]:80", "127.0.0.1:30080"} {
			assertAnswers(t, node, address, "a")
		}
		s := r.status()
		assert.Empty(t, s.IPTables.IPv4.Error+s.IPTables.IPv4.GuardError+s.IPTables.IPv6.Error+s.IPTables.IPv6.GuardError)
		assert.Zero(t, s.Sync.Failures)
	})
}

// The examples that need no more than Services work without netfilter too.
func TestExamplesWithoutNetfilter(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"clusterip.yaml", "dualstack.yaml", "externalip.yaml", "loadbalancer.yaml", "nodeport.yaml"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lab.Run(t, func(t *testing.T, node *lab.Host) { runExample(t, node, examplesDir+"/"+name, "--interception=local") })
		})
	}
}

// Each command line of redial in the READMEs is one that it understands.
func TestCommandsOfExamples(t *testing.T) {
	t.Parallel()
	readmes, err := filepath.Glob(examplesDir + "/*/README.md")
	require.NoError(t, err)
	found := 0
	for _, readme := range readmes {
		content, err := os.ReadFile(readme)
		require.NoError(t, err)
		for line := range strings.Lines(string(content)) {
			args, is := strings.CutPrefix(strings.TrimRight(line, "\n"), "    redial --")
			if is && !strings.Contains(args, "$") {
				mustParse(t, strings.Fields("--"+args)...)
				found++
			}
		}
	}
	assert.Greater(t, found, 3)
}

// In a network of one's own Services work on their own addresses, without any privilege, and nothing is left of it.
func TestRootlessExample(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		dir := t.TempDir()
		for _, file := range []string{"localhost.yaml", "rootless/run.sh"} {
			content, err := os.ReadFile(filepath.Join(examplesDir, file))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(file)), content, 0o755))
		}
		program, err := os.ReadFile("/proc/self/exe") // which may be where others cannot read it
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(dir+"/redial", program, 0o755))
		r := newInstance(t, dir)
		r.cmd = exec.Command(dir+"/run.sh", dir, "sh", "-c", `
			for port in 8081 8082; do while :; do echo from $port | nc -lN 127.0.0.1 $port; done >/dev/null 2>&1 & done
			until nc -N 198.18.100.90 80 </dev/null | grep from; do sleep 0.1; done
			exit 3`)
		r.cmd.Env = append(os.Environ(), mainEnv+"=1", "PATH="+dir+":"+os.Getenv("PATH"), "TMPDIR="+filepath.Dir(r.socket))
		r.asNobody()
		if exec.Command("setpriv", "--reuid=65534", "--clear-groups", "unshare", "--map-root-user", "--net", "true").Run() != nil {
			t.Skip("this system lets users make no user namespaces")
		}
		out, err := r.cmd.CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%s", out)
		assert.Equal(t, 3, exit.ExitCode(), "that of the command: %s", out)
		assert.Regexp(t, "from 808[12]", string(out))
		left, err := os.ReadDir(filepath.Dir(r.socket))
		require.NoError(t, err)
		assert.Empty(t, left)
	})
}
