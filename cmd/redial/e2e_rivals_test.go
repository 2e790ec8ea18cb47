package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
)

// What kube-proxy's mode nftables leaves behind can send clients elsewhere while all looks well here, so it is said.
func TestLeftoverTableOfKubeProxy(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		nft := func(command string) {
			out, err := node.Output("nft", command)
			require.NoError(t, err, out)
		}
		nft("add table ip kube-proxy")
		cluster := func(flags ...string) *instance {
			r := newInstance(t, t.TempDir())
			r.cmd = redialCommand(append([]string{"--master=http://127.0.0.1:1", "--admin-socket", r.socket, "--drain-timeout=0"}, flags...)...)
			r.cmd.Stderr = r.log
			r.start()
			return r
		}

		beside := cluster("--service-proxy-name=redial")
		assert.NotContains(t, statusOf(t, beside), "KUBE-PROXY", "it is to be there")
		beside.kill()

		r := cluster()
		assert.Contains(t, r.log.String(), "kube-proxy's rules are in force")
		assert.Contains(t, statusOf(t, r), "KUBE-PROXY'S RULES ARE IN FORCE (ip): ")
		nft("add table ip6 kube-proxy")
		assert.Contains(t, statusOf(t, r), "KUBE-PROXY'S RULES ARE IN FORCE (ip, ip6): ")
		nft("delete table ip kube-proxy")
		nft("delete table ip6 kube-proxy")
		assert.NotContains(t, statusOf(t, r), "KUBE-PROXY")
	})
}
