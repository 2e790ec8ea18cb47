package lab

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// Isolate makes cmd start in network, mount and PID namespaces of its own; without root, in a user namespace as well.
func Isolate(cmd *exec.Cmd) {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	cmd.SysProcAttr = attr
}

// TB is what Run needs of *testing.T or *testing.B.
type TB interface {
	Helper()
	Name() string
	Log(args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Skip(args ...any)
}

const insideEnv = "REDIAL_LAB"

// Run runs body in a process of its own whose network namespace is a new node. It skips the test, with the reason, where
// namespaces cannot be made. The test fails or is skipped as body says. Call it as the last thing of a test or subtest:
// what stands before it runs in both processes.
func Run[T TB](t T, body func(T, *Host)) {
	t.Helper()
	if os.Getenv(insideEnv) == t.Name() {
		node, err := NewNode()
		if err != nil {
			t.Skip("no namespace to test in: " + err.Error())
		}
		body(t, node)
		return
	}
	if os.Getenv(insideEnv) != "" {
		return // a sibling of the test that this process was started for
	}
	out, err := rerun(t.Name(), isBenchmark(t))
	switch {
	case err != nil && len(out) == 0:
		t.Skip("no namespace to test in: " + err.Error())
	case err != nil:
		t.Fatalf("in its own namespace: %v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP: "+t.Name())):
		t.Skip(string(out))
	case isBenchmark(t):
		t.Log("\n" + string(out))
	case !bytes.Contains(out, []byte("--- PASS: "+t.Name())):
		t.Fatalf("in its own namespace nothing ran:\n%s", out)
	}
}

func isBenchmark(t TB) bool { return strings.HasPrefix(t.Name(), "Benchmark") }

func rerun(name string, benchmark bool) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// Five minutes is far beyond any test here; it only keeps a hung one from outliving the run.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	args := []string{"-test.v", "-test.count=1", "-test.timeout=4m"}
	if benchmark {
		args = append(args, "-test.run=^$", "-test.bench="+pattern(name))
	} else {
		args = append(args, "-test.run="+pattern(name))
	}
	cmd := exec.CommandContext(ctx, self, args...)
	// The race detector lets a process linger for a second at its end, which would be most of a test's time here.
	cmd.Env = append(os.Environ(), insideEnv+"="+name, "GORACE=atexit_sleep_ms=10 "+os.Getenv("GORACE"))
	Isolate(cmd)
	return cmd.CombinedOutput()
}

// pattern selects exactly one test or subtest.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}
