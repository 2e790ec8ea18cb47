package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy/intercept/lab"
)

func startDemo(t *testing.T) (*exec.Cmd, *logBuffer) {
	t.Helper()
	if out, err := namespaces(); err != nil {
		t.Skipf("no namespaces: %v: %s", err, out)
	}
	cmd := redialCommand("demo")
	// A mark that its whole family inherits, by which leftovers are found.
	cmd.Env = append(cmd.Env, demoMark(t))
	out := &logBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = testPatience // for who still holds the streams
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd, out
}

// demoMark is an environment variable of this test in this process alone.
func demoMark(t *testing.T) string {
	return fmt.Sprintf("REDIAL_E2E_DEMO=%s-%d", t.Name(), os.Getpid())
}

// namespaces reports whether the demo can have any.
func namespaces() ([]byte, error) {
	cmd := exec.Command("true")
	lab.Isolate(cmd)
	return cmd.CombinedOutput()
}

func TestDemo(t *testing.T) {
	t.Parallel()
	cmd, out := startDemo(t)
	err := cmd.Wait()
	require.NoError(t, err, out.String())
	for _, line := range []string{
		`redial, ClusterIP +[1-9]\d+ +0 +\S+ +\S+`,
		`redial, NodePort +[1-9]\d+ +0 +\S+ +\S+`,
		`redial, UDP +[1-9]\d+ +0 +\S+ +\S+`,
		`kernel DNAT, UDP +[1-9]\d+ +\d+ +\S+ +\S+`,
		`kernel DNAT, same backends +[1-9]\d+ +[1-9]\d* +\S+ +\S+`,
		`connections that redial took to a second backend: [1-9]\d*`,
		`-- backend a is killed`,
		`-- both come back`,
	} {
		assertLine(t, line, out.String())
	}
	assertNobodyLeft(t)
}

func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	cmd, out := startDemo(t)
	require.True(t, eventually(func() bool { return strings.Contains(out.String(), "-- backend a is killed") }), out.String())
	// A terminal sends it to the whole group.
	require.NoError(t, unix.Kill(-cmd.Process.Pid, unix.SIGINT))
	err := cmd.Wait()
	assert.NoError(t, err, out.String())
	assert.NotContains(t, out.String(), "-- both come back", "it went on")
	assertLine(t, `redial, ClusterIP +[1-9]\d+ +0 +\S+ +\S+`, out.String())
	assertNobodyLeft(t)
}

// assertNobodyLeft looks through all processes for those the demo has started.
func assertNobodyLeft(t *testing.T) {
	t.Helper()
	mark := []byte(demoMark(t) + "\x00")
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, err)
	for _, path := range environs {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // gone meanwhile, or somebody else's
		}
		assert.False(t, bytes.Contains(b, mark), "left: %s", path)
	}
}
