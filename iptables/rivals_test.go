package iptables

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
)

func TestRivals(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		assert.Empty(t, Rivals())
		for _, table := range []string{"inet kube-proxy", "ip kube-proxy-else", "ip6 kube-proxy"} {
			out, err := node.Output("nft", "add table "+table)
			require.NoError(t, err, out)
		}
		assert.Equal(t, []string{"ip6"}, Rivals(), "those of kube-proxy alone")
		_, err := node.Output("nft", "add table ip kube-proxy")
		require.NoError(t, err)
		assert.Equal(t, []string{"ip", "ip6"}, Rivals())
	})
}
