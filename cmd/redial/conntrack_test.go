package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy/intercept/lab"
)

const sysctlDir = "proc/sys/net/netfilter/"

// kernelFiles makes a root with settings in it.
func kernelFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, content := range files {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	return root
}

func fileContent(t *testing.T, root, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	return strings.TrimSpace(string(b))
}

func TestConntrackMax(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args  string
		cores int
		want  int // 0: left alone
	}{
		{"", 2, 131072},
		{"", 8, 262144},
		{"", 256, 1 << 20},
		{"--conntrack-min=2000000", 256, 2000000},
		{"--conntrack-max-per-core=0", 8, 0},
		{"--conntrack-max-per-core=100 --conntrack-min=0", 3, 300},
	} {
		limit := 0
		for _, s := range mustParse(t, strings.Fields(test.args)...).conntrackSettings(test.cores) {
			if s.path == sysctlDir+"nf_conntrack_max" {
				limit = s.value
			}
		}
		assert.Equal(t, test.want, limit, "%s, %d cores", test.args, test.cores)
	}
}

func TestApplySettings(t *testing.T) {
	t.Parallel()
	root := kernelFiles(t, map[string]string{
		sysctlDir + "nf_conntrack_max":                     "100\n",
		sysctlDir + "nf_conntrack_tcp_timeout_established": "432000\n",
		sysctlDir + "nf_conntrack_tcp_timeout_close_wait":  "3600\n",
		sysctlDir + "nf_conntrack_tcp_be_liberal":          "0\n",
		sysctlDir + "nf_conntrack_udp_timeout":             "30\n",
		sysctlDir + "nf_conntrack_udp_timeout_stream":      "120\n",
		conntrackHashSize:                                  "9999999\n",
		"proc/self/oom_score_adj":                          "0\n",
		"sys/devices/system/cpu/online":                    "0-4,7\n",
	})
	log, hook := logtest.NewNullLogger()
	o := mustParse(t, "--conntrack-tcp-be-liberal", "--conntrack-udp-timeout=10s", "--kubeconfig=/k")
	o.prepareProcess(root, logrus.NewEntry(log))
	for path, want := range map[string]string{
		sysctlDir + "nf_conntrack_max":                     "196608",
		sysctlDir + "nf_conntrack_tcp_timeout_established": "86400",
		sysctlDir + "nf_conntrack_tcp_be_liberal":          "1",
		sysctlDir + "nf_conntrack_udp_timeout":             "10",
		sysctlDir + "nf_conntrack_udp_timeout_stream":      "120", // 0 leaves it
		conntrackHashSize:                                  "9999999",
		"proc/self/oom_score_adj":                          "-999",
	} {
		// An ordinary file keeps the end of what was there before, as the kernel's do not.
		assert.True(t, strings.HasPrefix(fileContent(t, root, path), want), "%s: %s", path, fileContent(t, root, path))
	}
	for _, e := range hook.AllEntries() {
		assert.Equal(t, logrus.InfoLevel, e.Level, e.Message)
		assert.NotContains(t, e.Data["setting"], "close_wait", "it is right already")
	}
	assert.Len(t, hook.AllEntries(), 4)
}

func TestSettingsThatCannotBeMade(t *testing.T) {
	t.Parallel()
	log, hook := logtest.NewNullLogger()
	root := kernelFiles(t, map[string]string{
		sysctlDir + "nf_conntrack_max": "garbage",
		"proc/self/x":                  "",
	})
	o := mustParse(t, "--kubeconfig=/k")
	o.prepareProcess(root, logrus.NewEntry(log))
	require.Len(t, hook.AllEntries(), 4, "the limit, the hash table and two timeouts; oom_score_adj was written")
	for _, e := range hook.AllEntries() {
		assert.Equal(t, logrus.WarnLevel, e.Level)
		assert.Contains(t, e.Message, "=0")
	}
	assert.Contains(t, hook.LastEntry().Message, "modprobe nf_conntrack")
	_, err := os.Stat(filepath.Join(root, sysctlDir, "nf_conntrack_tcp_timeout_close_wait"))
	assert.ErrorIs(t, err, os.ErrNotExist, "a file of the kernel is not made")

	assert.Contains(t, advice(unix.EROFS, "conntrack-min"), "privileged")
	assert.Contains(t, advice(unix.EACCES, "conntrack-min"), "privileged")
	assert.Contains(t, advice(unix.EINVAL, "conntrack-min"), "by hand")
}

// Without a cluster the node is somebody's own: only what was asked for is set.
func TestManifestsLeaveTheKernelAlone(t *testing.T) {
	t.Parallel()
	root := kernelFiles(t, map[string]string{
		sysctlDir + "nf_conntrack_tcp_timeout_close_wait": "60",
		sysctlDir + "nf_conntrack_udp_timeout":            "30",
		"proc/self/oom_score_adj":                         "0",
	})
	log, hook := logtest.NewNullLogger()
	mustParse(t, "--manifests=.", "--conntrack-udp-timeout=10s").prepareProcess(root, logrus.NewEntry(log))
	assert.Equal(t, "60", fileContent(t, root, sysctlDir+"nf_conntrack_tcp_timeout_close_wait"))
	assert.Equal(t, "10", fileContent(t, root, sysctlDir+"nf_conntrack_udp_timeout"))
	assert.Equal(t, "0", fileContent(t, root, "proc/self/oom_score_adj"))
	assert.Len(t, hook.AllEntries(), 1)
}

// Real ones, of a network namespace; the limit of entries and the hash table are the machine's.
func TestInitOnly(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		out, err := node.Output("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "198.18.200.0/24", "-j", "MASQUERADE")
		require.NoError(t, err, out)
		const closeWait = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"
		before, err := os.ReadFile(closeWait)
		if err != nil {
			t.Skipf("no connection tracking: %v", err)
		}
		require.NotEqual(t, strconv.Itoa(4321), strings.TrimSpace(string(before)))
		said, err := runRedial("--init-only", "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-close-wait=4321s", "--oom-score-adj=1000")
		require.NoError(t, err, said)
		after, err := os.ReadFile(closeWait)
		require.NoError(t, err)
		if strings.Contains(said, "privileged") {
			t.Skip("/proc/sys is read-only here")
		}
		assert.Equal(t, "4321", strings.TrimSpace(string(after)))
	})
}

func TestOnlineCores(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]int{"0": 1, "0-3": 4, "0-1,4,6-7\n": 5} {
		assert.Equal(t, want, onlineCores(kernelFiles(t, map[string]string{"sys/devices/system/cpu/online": content})), content)
	}
	assert.Positive(t, onlineCores(t.TempDir()))
	assert.Positive(t, onlineCores(kernelFiles(t, map[string]string{"sys/devices/system/cpu/online": "all"})))
}
