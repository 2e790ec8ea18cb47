package main

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/config"
	"redial/proxy"
	"redial/proxy/admin"
)

// The test binary is the program under test as well: with this in its environment it runs main. So no test can run
// against a stale build, and with -race the proxy's races are found too.
const mainEnv = "REDIAL_E2E_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// redialCommand is the program with arguments, not started. It is found by its open file, since the folder that go test
// builds in is closed to other users.
func redialCommand(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), mainEnv+"=1")
	return cmd
}

// runRedial runs a subcommand to its end and returns what it printed on both streams.
func runRedial(args ...string) (string, error) {
	out, err := redialCommand(args...).CombinedOutput()
	return string(out), err
}

// testPatience is what a test grants a fact to come true. Only a failing test waits so long.
const testPatience = time.Minute

// instance is a redial process that serves a directory of manifests.
type instance struct {
	t      *testing.T
	dir    string // of manifests
	socket string
	cmd    *exec.Cmd
	log    *logBuffer
	exited chan struct{} // closed when the process has ended, after err was set
	err    error
}

// startRedial starts a proxy on the manifests and waits until it answers. It is killed when the test ends.
func startRedial(t *testing.T, manifests string, flags ...string) *instance {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "all.yaml"), manifests)
	return startIn(t, dir, flags...)
}

func startIn(t *testing.T, dir string, flags ...string) *instance {
	t.Helper()
	r := newInstance(t, dir, flags...)
	r.start()
	return r
}

// newInstance is an instance that is not started, so that its command can be changed.
func newInstance(t *testing.T, dir string, flags ...string) *instance {
	t.Helper()
	// A path of a socket has at most 107 bytes: a test's own folder is often deeper than that.
	sockets, err := os.MkdirTemp("", "redial")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(sockets) })
	r := &instance{t: t, dir: dir, socket: filepath.Join(sockets, "s"), log: &logBuffer{}, exited: make(chan struct{})}
	r.cmd = redialCommand(append([]string{"--manifests", dir, "--admin-socket", r.socket}, flags...)...)
	r.cmd.Stderr = r.log
	return r
}

// asNobody has an instance that is not started yet run without privileges.
func (r *instance) asNobody() {
	r.t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	// The folders of a test are closed to others.
	for d := r.dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		require.NoError(r.t, os.Chmod(d, 0o755))
	}
	require.NoError(r.t, os.Chmod(filepath.Dir(r.socket), 0o777))
	const nobody = 65534
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

func (r *instance) start() {
	r.t.Helper()
	require.NoError(r.t, r.cmd.Start())
	go func() {
		r.err = r.cmd.Wait()
		close(r.exited)
	}()
	r.t.Cleanup(func() {
		r.kill()
		if r.t.Failed() {
			r.t.Logf("log of redial:\n%s", r.log.tail())
		}
		if strings.Contains(r.log.String(), "DATA RACE") {
			r.t.Errorf("redial has a data race:\n%s", r.log)
		}
	})
	r.await("redial answers", func(*status) bool { return true })
}

func (r *instance) signal(s unix.Signal) { _ = r.cmd.Process.Signal(s) }

// kill ends the process without giving it a chance to notice.
func (r *instance) kill() {
	r.signal(unix.SIGKILL)
	<-r.exited
}

// wait waits for the process to end by itself and returns how it did.
func (r *instance) wait() error {
	r.t.Helper()
	select {
	case <-r.exited:
	case <-time.After(testPatience):
		require.FailNow(r.t, "redial does not end", "%s", r.log)
	}
	return r.err
}

// restart starts another process in place of one that has ended, with the same manifests, socket and flags.
func (r *instance) restart() *instance {
	r.t.Helper()
	next := &instance{t: r.t, dir: r.dir, socket: r.socket, log: &logBuffer{}, exited: make(chan struct{})}
	next.cmd = redialCommand(r.cmd.Args[1:]...)
	next.cmd.Stderr = next.log
	next.start()
	return next
}

// status asks the instance, as redial status does.
func (r *instance) status() *status {
	r.t.Helper()
	var s status
	require.NoError(r.t, admin.Get(context.Background(), r.socket, &s), "%s", r.log)
	return &s
}

// await waits until the status fulfils a condition, and returns it.
func (r *instance) await(what string, fulfilled func(*status) bool) *status {
	r.t.Helper()
	var last status
	var err error
	if !eventually(func() bool {
		select {
		case <-r.exited:
			require.FailNow(r.t, "redial has ended", "waiting for: %s\n%s", what, r.log)
		default:
		}
		last = status{}
		err = admin.Get(context.Background(), r.socket, &last)
		return err == nil && fulfilled(&last)
	}) {
		require.FailNow(r.t, "not in time: "+what, "%v", err)
	}
	return &last
}

// awaitServed waits until each of the Services of namespace default is steered and served, on all its ports.
func (r *instance) awaitServed(services ...string) *status {
	r.t.Helper()
	return r.await(strings.Join(services, ", ")+" served", func(s *status) bool {
		for _, name := range services {
			svc := s.service(name)
			if svc == nil || len(svc.Ports) == 0 {
				return false
			}
			for _, p := range svc.Ports {
				for _, f := range p.Fronts {
					if !f.Serving || len(f.VIPs) == 0 {
						return false
					}
				}
				if len(p.Fronts) == 0 {
					return false
				}
			}
		}
		return true
	})
}

// awaitProblem waits until a Service has a problem for the reason, and returns it.
func (r *instance) awaitProblem(service, reason string) config.Problem {
	r.t.Helper()
	var found config.Problem
	r.await(service+" has problem "+reason, func(s *status) bool {
		svc := s.service(service)
		if svc == nil {
			return false
		}
		for _, p := range svc.Problems {
			if p.Reason == reason {
				found = p
				return true
			}
		}
		return false
	})
	return found
}

func (r *instance) awaitNoProblem(service string) {
	r.t.Helper()
	r.await(service+" has no problem", func(s *status) bool {
		svc := s.service(service)
		return svc != nil && len(svc.Problems) == 0
	})
}

// write replaces a manifest in the way editors do: nobody sees half of it.
func (r *instance) write(name, content string) {
	r.t.Helper()
	writeFile(r.t, filepath.Join(r.dir, name), content)
}

func (r *instance) remove(name string) {
	r.t.Helper()
	require.NoError(r.t, os.Remove(filepath.Join(r.dir, name)))
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	hidden := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	require.NoError(t, os.WriteFile(hidden, []byte(content), 0o644))
	require.NoError(t, os.Rename(hidden, path))
}

// service finds a Service of namespace default.
func (s *status) service(name string) *proxy.ServiceStatus {
	for i := range s.Services {
		if s.Services[i].Namespace == "default" && s.Services[i].Name == name {
			return &s.Services[i]
		}
	}
	return nil
}

// front returns the first frontend of a Service; a zero one if there is none.
func (s *status) front(service string) proxy.FrontendStatus {
	if svc := s.service(service); svc != nil {
		for _, p := range svc.Ports {
			for _, f := range p.Fronts {
				return f
			}
		}
	}
	return proxy.FrontendStatus{}
}

func eventually(fulfilled func() bool) bool {
	for deadline := time.Now().Add(testPatience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if fulfilled() {
			return true
		}
	}
	return fulfilled()
}

// logBuffer collects what a process logs.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// tail is the end of what was logged: enough to see what went wrong last.
func (b *logBuffer) tail() string {
	lines := strings.SplitAfter(b.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "")
}

// manifests joins documents.
func manifests(documents ...string) string { return strings.Join(documents, "---\n") }

// service is a Service's document. spec is a flow mapping: "{clusterIP: 198.18.100.1, ports: [{port: 80}]}".
func service(name, spec string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: default}\nspec: %s\n", name, spec)
}

// unhedged has a Service's clients stay with the backend whose turn it is, however long it takes.
func unhedged(manifests string) string {
	return strings.Replace(manifests, "namespace: default}", `namespace: default, annotations: {redial/hedge: "off"}}`, 1)
}

// endpoints is a slice's document: the addresses are of one family, ports is a flow sequence.
func endpoints(service, ports string, addresses ...string) string {
	family := config.IPv4
	if len(addresses) > 0 && netip.MustParseAddr(addresses[0]).Is6() {
		family = config.IPv6
	}
	var list strings.Builder
	for _, a := range addresses {
		fmt.Fprintf(&list, "{addresses: [%q]}, ", a)
	}
	return fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
		"metadata: {name: %s-%s, namespace: default, labels: {kubernetes.io/service-name: %s}}\n"+
		"addressType: %s\nports: %s\nendpoints: [%s]\n",
		service, strings.ToLower(string(family)), service, family, ports, list.String())
}

// web is a Service with port 80 on one ClusterIP and its backends on port 8080.
func web(name, clusterIP string, backends ...string) string {
	return manifests(service(name, fmt.Sprintf("{clusterIP: %s, ports: [{port: 80}]}", clusterIP)),
		endpoints(name, "[{port: 8080}]", backends...))
}
