package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy/intercept/lab"
)

const (
	lookupName = "www.redial.test"
	lookupA    = "192.0.2.7"
	lookupAAAA = "2001:db8:7::7"
)

// dnsServer is a dnsmasq in a pod, which knows lookupName, and says by a TXT record which one it is.
type dnsServer struct {
	t    *testing.T
	name string
	host *lab.Host
	cmd  *exec.Cmd
}

func addDNSServer(t *testing.T, node *lab.Host, name string, n int) *dnsServer {
	t.Helper()
	s := &dnsServer{t: t, name: name, host: addHost(t, node, name, n)}
	s.start()
	return s
}

func (s *dnsServer) start() {
	s.t.Helper()
	// Not as a daemon, which would change its user and leave this process; and without a file of the machine's.
	s.cmd = exec.Command("dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--pid-file", "--no-resolv", "--no-hosts", "--local=/test/",
		fmt.Sprintf("--host-record=%s,%s,%s", lookupName, lookupA, lookupAAAA), fmt.Sprintf("--txt-record=%s,%s", lookupName, s.name))
	log := &logBuffer{}
	s.cmd.Stderr = log
	require.NoError(s.t, s.host.Start(s.cmd))
	require.True(s.t, eventually(func() bool {
		out, err := s.host.Output("dig", "+short", "+tries=1", "@127.0.0.1", lookupName, "TXT")
		return err == nil && strings.Contains(out, s.name)
	}), "dnsmasq does not answer: %s", log)
}

// kill leaves the pod running, so that its kernel refuses.
func (s *dnsServer) kill() {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Kill())
	s.cmd.Wait()
}

// resolveBy makes address the name server of everybody who has this process' mounts.
func resolveBy(t *testing.T, address string) {
	t.Helper()
	const path = "/etc/resolv.conf"
	if _, err := os.Stat(path); err != nil {
		// Often it is a link into /run, which is empty here.
		link, err := os.Readlink(path)
		require.NoError(t, err)
		if !filepath.IsAbs(link) {
			link = filepath.Join(filepath.Dir(path), link)
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(link), 0o755))
		require.NoError(t, os.WriteFile(link, nil, 0o644))
	}
	for path, content := range map[string]string{path: "nameserver " + address + "\n", "/etc/nsswitch.conf": "hosts: dns\n"} {
		ours := filepath.Join(t.TempDir(), "conf")
		require.NoError(t, os.WriteFile(ours, []byte(content), 0o644))
		require.NoError(t, unix.Mount(ours, path, "", unix.MS_BIND, ""))
	}
}

// lookup is one run of a resolver. again is whether it had to ask a second time, if it says so.
func lookup(from *lab.Host, kind string, dig ...string) (again bool, err error) {
	var out string
	want := []string{lookupA, lookupAAAA}
	switch kind {
	case "A", "AAAA":
		out, err = from.Output("dig", append(dig, "+short", lookupName, kind)...)
		again = strings.Contains(out, ";; communications error") || strings.Contains(out, "timed out")
		want = want[:1]
		if kind == "AAAA" {
			want[0] = lookupAAAA
		}
	default: // glibc: both at once, from one port, and with the tries given by the environment
		out, err = from.Output("env", append(dig, "getent", "ahosts", lookupName)...)
	}
	for _, address := range want {
		if err == nil && !strings.Contains(out, address) {
			err = fmt.Errorf("no %s in the answer to %s: %q", address, kind, out)
		}
	}
	return again, err
}

// lookups has somebody look up again and again.
type lookups struct {
	stop, stopped chan struct{}
	done, again   atomic.Int64
	failed        []error
}

func startLookups(from *lab.Host) *lookups {
	l := &lookups{stop: make(chan struct{}), stopped: make(chan struct{})}
	go l.run(from)
	return l
}

func (l *lookups) run(from *lab.Host) {
	defer close(l.stopped)
	for {
		for _, kind := range []string{"A", "AAAA", "both"} {
			again, err := lookup(from, kind)
			if err != nil {
				l.failed = append(l.failed, err)
			}
			if again {
				l.again.Add(1)
			}
			l.done.Add(1)
		}
		select {
		case <-l.stop:
			return
		default:
		}
	}
}

func (l *lookups) awaitMore(t *testing.T, n int64) {
	t.Helper()
	goal := l.done.Load() + n
	require.True(t, eventually(func() bool { return l.done.Load() >= goal }), "%d lookups", n)
}

// Real resolvers and real servers, of which one dies with its socket full of questions.
func TestLookupsWhileAServerDies(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		for _, program := range []string{"dnsmasq", "dig", "getent"} {
			if _, err := exec.LookPath(program); err != nil {
				t.Skip(err)
			}
		}
		one := addDNSServer(t, node, "one", 1)
		addDNSServer(t, node, "two", 2)
		client := addHost(t, node, "client", 9)
		resolveBy(t, clusterIP1)
		r := startRedial(t, manifests(service("dns", "{clusterIP: 198.18.100.1, ports: [{port: 53, protocol: UDP}]}"),
			endpoints("dns", "[{port: 53, protocol: UDP}]", ip4(1), ip4(2))))
		r.awaitServed("dns")
		byBoth := func() map[string]bool {
			seen := map[string]bool{}
			for range 4 {
				out, err := client.Output("dig", "+short", "+tries=1", "+timeout=20", lookupName, "TXT")
				require.NoError(t, err)
				seen[strings.Trim(out, "\"\n")] = true
			}
			return seen
		}
		require.Equal(t, map[string]bool{"one": true, "two": true}, byBoth())

		steady := []*lookups{startLookups(client), startLookups(node)}
		for _, l := range steady {
			l.awaitMore(t, 15)
		}
		one.kill()
		// Who asks from now on needs no second try: the refusal takes the very question to the other server.
		for range 5 {
			for _, from := range []*lab.Host{client, node} {
				for _, kind := range []string{"A", "AAAA"} {
					_, err := lookup(from, kind, "+tries=1", "+timeout=20")
					assert.NoError(t, err)
				}
				_, err := lookup(from, "both", "RES_OPTIONS=attempts:1 timeout:20")
				assert.NoError(t, err)
			}
		}
		for _, l := range steady {
			l.awaitMore(t, 15)
		}
		one.start()
		require.True(t, eventually(func() bool { return byBoth()["one"] }), "the server that came back is not asked")
		for _, l := range steady {
			l.awaitMore(t, 6)
			close(l.stop)
			<-l.stopped
			assert.Empty(t, l.failed)
			t.Logf("%d lookups, %d needed a second try", l.done.Load(), l.again.Load())
		}
		assert.NotZero(t, r.status().front("dns").Stats.Retried, "the test is of no use if nobody met the dead server")
	})
}
