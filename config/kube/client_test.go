package kube

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClientConfig(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBECONFIG", "")
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":"https://198.18.0.1:6443"}}],
		"users":[{"name":"u","user":{"token":"t"}}],
		"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}`), 0o600))

	cfg, err := ClientConfig{Kubeconfig: file}.rest()
	require.NoError(t, err)
	require.Equal(t, "https://198.18.0.1:6443", cfg.Host)
	require.Equal(t, "t", cfg.BearerToken)
	require.Equal(t, "application/vnd.kubernetes.protobuf", cfg.ContentType)
	require.Equal(t, "application/vnd.kubernetes.protobuf,application/json", cfg.AcceptContentTypes)
	require.Zero(t, cfg.Timeout, "it would end watches")

	cfg, err = ClientConfig{Kubeconfig: file, Master: "https://198.18.0.2", ContentType: "application/json", QPS: 7, Burst: 9, UserAgent: "redial/1"}.rest()
	require.NoError(t, err)
	require.Equal(t, "https://198.18.0.2", cfg.Host)
	require.Equal(t, "t", cfg.BearerToken)
	require.Equal(t, "application/json", cfg.AcceptContentTypes)
	require.EqualValues(t, 7, cfg.QPS)
	require.Equal(t, 9, cfg.Burst)
	require.Equal(t, "redial/1", cfg.UserAgent)

	_, err = Client(ClientConfig{})
	require.ErrorContains(t, err, "--kubeconfig or --master")
	missing := filepath.Join(t.TempDir(), "none")
	_, err = Client(ClientConfig{Kubeconfig: missing})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, missing)
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	_, err = Client(ClientConfig{Kubeconfig: file})
	require.ErrorContains(t, err, file)
}
