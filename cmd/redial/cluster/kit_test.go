package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"redial/proxy/intercept/lab"
)

// What the suite is told by its environment.
const (
	// binariesEnv is the folder of the control plane's programs, which kubernetes/build.sh builds. Without it everything is
	// skipped.
	binariesEnv = "REDIAL_CLUSTER_BINARIES"
	// proxyEnv is a proxy to run in redial's place. kube-proxy itself passes, but for what only redial promises: so the suite
	// can be held against what it wants to say.
	proxyEnv = "REDIAL_CLUSTER_PROXY"
	// dirEnv is set for the process that holds the cluster: the folder with its data and logs.
	dirEnv = "REDIAL_CLUSTER_DIR"
)

// The cluster that all tests share, and its first nodes.
var (
	shared       *Cluster
	node1, node2 *Node
)

func TestMain(m *testing.M) {
	code, err := testMain(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		code = 1
	}
	os.Exit(code)
}

func testMain(m *testing.M) (int, error) {
	binaries := os.Getenv(binariesEnv)
	if binaries == "" {
		return m.Run(), nil // each test says why it is skipped
	}
	if dir := os.Getenv(dirEnv); dir != "" {
		return runInside(m, dir, binaries)
	}
	dir, err := os.MkdirTemp("", "redial-cluster")
	if err != nil {
		return 1, err
	}
	code, err := rerun(dir)
	if code != 0 || err != nil {
		return code, errors.Join(err, fmt.Errorf("the logs are kept in %s", dir))
	}
	return 0, os.RemoveAll(dir)
}

// rerun runs the test binary again, isolated, with what it needs built.
func rerun(dir string) (int, error) {
	builds := map[string][]string{"pod": {"build", "-o", filepath.Join(dir, "pod"), "./pod"}}
	if os.Getenv(proxyEnv) == "" {
		builds["redial"] = []string{"build", "-race", "-o", filepath.Join(dir, "redial"), ".."}
	}
	for name, args := range builds {
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			return 1, fmt.Errorf("building %s: %w\n%s", name, err, out)
		}
	}
	// The thread that starts the process has to outlive it: its end would set off Pdeathsig.
	runtime.LockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), dirEnv+"="+dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	lab.Isolate(cmd)
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(1, exit.ExitCode()), nil
	}
	return 0, err
}

// runInside runs the tests in a cluster that ends with this process.
func runInside(m *testing.M, dir, binaries string) (int, error) {
	lan, err := lab.NewNode()
	if err != nil {
		return 1, fmt.Errorf("isolating the cluster: %w", err)
	}
	config := Config{Dir: dir, Binaries: binaries, Proxy: os.Getenv(proxyEnv), Pod: filepath.Join(dir, "pod")}
	if config.Proxy == "" {
		config.Proxy = filepath.Join(dir, "redial")
	}
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	if shared, err = Start(context.Background(), lan, config); err != nil {
		return 1, err
	}
	defer shared.Stop()
	for i, node := range []**Node{&node1, &node2} {
		if *node, err = shared.AddNode(ctx, NodeConfig{Name: fmt.Sprintf("node%d", i+1), Zone: string(rune('a' + i))}); err != nil {
			return 1, err
		}
		if err := (*node).StartProxy(); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}

// patience is what a test grants a fact to come true. Only a failing test waits so long.
const patience = 90 * time.Second

// eventually waits until check returns nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if broken := shared.Failed(); broken != nil {
			t.Fatalf("%s: %v", what, broken)
		}
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
