package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mayImport says what each package may import besides the standard library: a package, or with "/..." what is below it.
// Imports point one way, so that every package can be understood and replaced with those below it alone.
var mayImport = map[string][]string{
	"redial/cmd/redial": {"redial/...", "github.com/sirupsen/logrus", "github.com/spf13/...", "golang.org/x/sys/..."},
	"redial/cmd/redial-bench": {
		"redial/cmd/redial-bench/apiserver", "redial/proxy/intercept/lab", "k8s.io/api/...", "k8s.io/apimachinery/...",
		"github.com/vishvananda/netlink", "github.com/spf13/...", "golang.org/x/sys/...",
	},
	"redial/cmd/redial-bench/apiserver": {"k8s.io/..."},
	"redial/cmd/redial/cluster": {
		"redial/proxy/intercept/lab", "k8s.io/...", "github.com/vishvananda/netlink", "golang.org/x/sys/...",
	},
	"redial/cmd/redial/cluster/pod": {},

	"redial/proxy": {
		"redial/config", "redial/balancer", "redial/proxy/relay", "redial/proxy/intercept",
		"github.com/sirupsen/logrus", "golang.org/x/sys/...",
	},
	"redial/proxy/admin":   {},
	"redial/proxy/server":  {"github.com/sirupsen/logrus"},
	"redial/proxy/health":  {"redial/config", "redial/proxy/server", "github.com/sirupsen/logrus"},
	"redial/proxy/metrics": {"redial/config", "github.com/prometheus/...", "github.com/sirupsen/logrus"},
	"redial/proxy/relay": {
		"github.com/hashicorp/golang-lru/...", "github.com/pires/go-proxyproto", "github.com/sirupsen/logrus",
		"golang.org/x/sys/...", "golang.org/x/sync/...",
	},
	"redial/proxy/relay/relaytest": {
		"redial/proxy/relay", "redial/proxy/intercept/lab",
		"github.com/pires/go-proxyproto", "github.com/stretchr/...", "golang.org/x/sys/...",
	},
	"redial/proxy/intercept":               {},
	"redial/proxy/intercept/local":         {"redial/proxy/intercept", "github.com/cilium/ebpf/...", "github.com/sirupsen/logrus", "github.com/vishvananda/netlink", "golang.org/x/sys/..."},
	"redial/proxy/intercept/intercepttest": {"redial/proxy/intercept", "redial/proxy/intercept/lab", "github.com/stretchr/...", "golang.org/x/sys/..."},
	"redial/proxy/intercept/lab":           {"github.com/vishvananda/netlink", "github.com/vishvananda/netns", "golang.org/x/sys/..."},

	"redial/iptables": {
		"redial/proxy/intercept",
		"github.com/coreos/go-iptables/...", "github.com/sirupsen/logrus", "github.com/vishvananda/netlink/...", "golang.org/x/sys/...",
	},
	"redial/balancer":    {"github.com/hashicorp/golang-lru/..."},
	"redial/config":      {"k8s.io/api/...", "k8s.io/apimachinery/..."},
	"redial/config/kube": {"redial/config", "k8s.io/...", "github.com/sirupsen/logrus"},
	"redial/config/manifest": {
		"redial/config", "k8s.io/api/...", "k8s.io/apimachinery/...", "sigs.k8s.io/...",
		"github.com/sirupsen/logrus", "github.com/fsnotify/fsnotify",
	},
	"redial/config/kubeproxy": {
		"k8s.io/kube-proxy/config/...", "k8s.io/component-base/logs/api/v1", "k8s.io/apimachinery/...", "sigs.k8s.io/...",
		"github.com/sirupsen/logrus", "github.com/fsnotify/fsnotify",
	},
}

func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		pkg, imports := fields[0], fields[1:]
		allowed, known := mayImport[pkg]
		if !assert.True(t, known, "%s is new: say here what it may import", pkg) {
			continue
		}
		for _, imported := range imports {
			if ours := strings.HasPrefix(imported, "redial/"); !ours && !strings.Contains(imported, ".") {
				continue // the standard library
			}
			assert.True(t, allows(allowed, imported), "%s must not import %s", pkg, imported)
		}
	}
}

func allows(allowed []string, imported string) bool {
	for _, a := range allowed {
		below, tree := strings.CutSuffix(a, "...")
		if imported == a || tree && (strings.HasPrefix(imported, below) || imported+"/" == below) {
			return true
		}
	}
	return false
}

func TestTopLevelFolders(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("../..")
	require.NoError(t, err)
	for _, e := range entries {
		// bin is what make builds, and not in the repository.
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && e.Name() != "bin" {
			assert.Contains(t, []string{"cmd", "proxy", "iptables", "balancer", "config", "examples"}, e.Name(), "the layout is fixed")
		}
	}
}

// One idea a file. A file that cannot be read at one sitting has more.
func TestFilesAreShort(t *testing.T) {
	t.Parallel()
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		content, err := os.ReadFile(path)
		assert.LessOrEqual(t, strings.Count(string(content), "\n"), 500, path)
		return err
	}))
}
