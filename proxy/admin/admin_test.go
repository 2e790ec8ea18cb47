package admin

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func serve(t *testing.T, path string, value any) (stop func()) {
	t.Helper()
	l, err := Listen(path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { assert.NoError(t, Serve(ctx, l, func() any { return value })); close(done) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func TestGet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "admin.sock")
	stop := serve(t, path, map[string]int{"answer": 42})
	var got map[string]int
	require.NoError(t, Get(t.Context(), path, &got))
	assert.Equal(t, map[string]int{"answer": 42}, got)

	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Zero(t, info.Mode().Perm()&0o077, "the owner's alone")

	stop()
	err = Get(t.Context(), path, &got)
	assert.ErrorContains(t, err, "no proxy answers")
	assert.NoFileExists(t, path)
}

func TestSecondInstanceIsTurnedAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	serve(t, path, 1)
	_, err := Listen(path)
	require.ErrorIs(t, err, ErrRunning)
	assert.ErrorContains(t, err, "--admin-socket")
	var got int
	assert.NoError(t, Get(t.Context(), path, &got), "the first one is not disturbed")
}

func TestSocketOfADeadProcessIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	require.FileExists(t, path)
	serve(t, path, 1)
	var got int
	assert.NoError(t, Get(t.Context(), path, &got))
}

func TestListenDoesNotRemoveOtherFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "precious")
	require.NoError(t, os.WriteFile(path, []byte("data"), 0o600))
	_, err := Listen(path)
	assert.Error(t, err)
	assert.FileExists(t, path)
}
