package main

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOptionsAreBounded(t *testing.T) {
	assert.NoError(t, (&options{rounds: 1, seconds: 0.1}).validate())
	for _, bad := range []options{{rounds: 0, seconds: 1}, {rounds: 1001, seconds: 1}, {rounds: 1}, {rounds: 1, seconds: math.NaN()}, {rounds: 1, seconds: 4000}} {
		assert.Error(t, bad.validate(), "%+v", bad)
	}
}

// measureSmall runs one round of a subcommand, in namespaces, and decodes its JSON.
func measureSmall(t *testing.T, report any, args ...string) (out string) {
	dir := t.TempDir()
	program, results := filepath.Join(dir, "redial"), filepath.Join(dir, "results.json")
	b, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, "../redial").CombinedOutput()
	require.NoError(t, err, "%s", b)
	cmd := self(t, append(args, "--rounds", "1", "--redial", program, "--json", results)...)
	cmd.Stderr = nil
	b, err = cmd.CombinedOutput()
	if strings.Contains(string(b), "making namespaces") {
		t.Skip(string(b))
	}
	require.NoError(t, err, "%s", b)
	t.Logf("%s", b)
	found, err := os.ReadFile(results)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(found, report))
	return string(b)
}

// self is a command of this program. The race detector lets a process linger for a second at its end: not here, where there
// are hundreds.
func self(t *testing.T, args ...string) *exec.Cmd {
	path, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=10 "+os.Getenv("GORACE"))
	cmd.Stderr = os.Stderr
	return cmd
}
