package iptables

import (
	"fmt"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

// What kube-proxy's nftables mode leaves behind can overrule us, so whoever replaces it has to be told.
func TestLeftoversOfKubeProxy(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		_, client := addPodAndClient(t, node)
		serveEveryKind(t)
		log, hook := logtest.NewNullLogger()
		cfg := testConfig(mode)
		cfg.Log = logrus.NewEntry(log)
		begin := func() []string {
			hook.Reset()
			require.NoError(t, start(t, cfg).Commit(t.Context(), intercept.State{Bindings: everyKind()}))
			var told []string
			for _, e := range hook.AllEntries() {
				if e.Level == logrus.WarnLevel {
					told = append(told, fmt.Sprint(e.Data["table"]))
				}
			}
			return told
		}
		// Other agents had the table of iptables made long ago.
		sh(t, node, fmt.Sprintf("for p in iptables-%[1]s ip6tables-%[1]s; do $p -t nat -A PREROUTING -p tcp --dport 9 -j ACCEPT; done", mode))
		assert.Empty(t, begin())
		for _, c := range []struct{ family, vip, gone string }{
			{"ip", "10.96.0.10", "198.18.1.1:9"}, {"ip6", "fd00:10:96::10", "[2001:db8:1::1]:9"},
		} {
			sh(t, node, fmt.Sprintf("nft 'add table %[1]s kube-proxy; add chain %[1]s kube-proxy nat-prerouting { type nat hook prerouting priority dstnat; }; "+
				"add rule %[1]s kube-proxy nat-prerouting %[1]s daddr %[2]s tcp dport 80 dnat to %[3]s'", c.family, c.vip, c.gone))
			assert.Equal(t, []string{c.family + " kube-proxy"}, begin())
			v := vip(c.vip, 80, intercept.TCP)
			_, err := ask(client, v)
			assert.Error(t, err, "it is the older rule that counts")
			sh(t, node, "nft delete table "+c.family+" kube-proxy")
			_, err = ask(client, v)
			assert.NoError(t, err)
		}
		assert.Empty(t, begin())
	})
}
