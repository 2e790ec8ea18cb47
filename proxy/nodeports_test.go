package proxy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/config"
	"redial/proxy/intercept"
)

func prefixes(list ...string) []netip.Prefix {
	out := []netip.Prefix{}
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestNodePortAddresses(t *testing.T) {
	node := config.Node{Addrs: []netip.Addr{
		netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.0.2"), netip.MustParseAddr("2001:db8::1"),
	}}
	for _, c := range []struct {
		list     string
		want     []netip.Prefix // with a node
		nodeless []netip.Prefix
		warning  string
	}{
		{"", nil, nil, ""},
		{"all", nil, nil, ""},
		{"0.0.0.0/0 ::/0", nil, nil, ""},
		{"198.18.5.7/24", prefixes("198.18.5.0/24", "::/0"), prefixes("198.18.5.0/24", "::/0"), "IPv6"},
		{"2001:db8::/32", prefixes("0.0.0.0/0", "2001:db8::/32"), prefixes("0.0.0.0/0", "2001:db8::/32"), "IPv4"},
		{"198.18.5.7/24 2001:db8::/32 198.18.5.0/24", prefixes("198.18.5.0/24", "2001:db8::/32"), prefixes("198.18.5.0/24", "2001:db8::/32"), ""},
		{"primary", prefixes("198.18.0.1/32", "2001:db8::1/128"), prefixes(), ""},
		{"localhost", prefixes("127.0.0.0/8", "::1/128"), prefixes("127.0.0.0/8", "::1/128"), ""},
		{"primary localhost", prefixes("127.0.0.0/8", "198.18.0.1/32", "::1/128", "2001:db8::1/128"), prefixes("127.0.0.0/8", "::1/128"), ""},
		{"primary 198.18.5.0/24", prefixes("198.18.0.1/32", "198.18.5.0/24", "2001:db8::1/128"), prefixes("198.18.5.0/24"), ""},
		{"primary all", nil, nil, ""},
	} {
		a, err := ParseNodePortAddresses(strings.Fields(c.list))
		require.NoError(t, err, c.list)
		assert.Equal(t, c.want, a.Prefixes(node), c.list)
		assert.Equal(t, c.nodeless, a.Prefixes(config.Node{}), c.list)
		if c.warning == "" {
			assert.Empty(t, a.Warning(), c.list)
		} else {
			assert.Contains(t, a.Warning(), "all "+c.warning+" addresses", c.list)
		}
	}
	_, err := ParseNodePortAddresses([]string{"198.18.0.0/24", "198.18.0.1", "::ffff:198.18.0.0/120", "Primary"})
	require.Error(t, err)
	for _, wrong := range []string{`"198.18.0.1"`, `"::ffff:198.18.0.0/120"`, `"Primary"`} {
		assert.Contains(t, err.Error(), wrong)
	}
	assert.NotContains(t, err.Error(), `"198.18.0.0/24"`)
}

func FuzzParseNodePortAddresses(f *testing.F) {
	for _, s := range []string{"", "primary,localhost", "198.18.0.0/15, 2001:db8::/32", "::ffff:1.2.3.4/100", "fe80::1%eth0/64", "1.2.3.4/33"} {
		f.Add(s)
	}
	node := config.Node{Addrs: []netip.Addr{netip.MustParseAddr("::ffff:198.18.0.1"), netip.MustParseAddr("fe80::1%eth0")}}
	f.Fuzz(func(t *testing.T, list string) {
		a, err := ParseNodePortAddresses(strings.Split(list, ","))
		if err != nil {
			return
		}
		for _, n := range []config.Node{{}, node} {
			got := a.Prefixes(n)
			assert.True(t, slices.IsSortedFunc(got, comparePrefixes))
			for _, p := range got {
				assert.True(t, p.IsValid() && p == p.Masked() && !p.Addr().Is4In6(), "%s", p)
			}
		}
	})
}

func TestLocalPods(t *testing.T) {
	node := config.Node{PodCIDRs: prefixes("198.18.3.0/24", "2001:db8:3::/64")}
	l := LocalPods{Prefixes: prefixes("198.18.9.1/16", "198.18.3.0/24"), NodeCIDR: true, Interfaces: []string{"veth+", "cni0", "cni0"}}
	assert.Equal(t, []intercept.PodSource{
		{Prefix: netip.MustParsePrefix("198.18.0.0/16")}, {Prefix: netip.MustParsePrefix("198.18.3.0/24")},
		{Prefix: netip.MustParsePrefix("2001:db8:3::/64")}, {Interface: "cni0"}, {Interface: "veth+"},
	}, l.sources(node))
	l.NodeCIDR = false
	assert.Len(t, l.sources(node), 4)
	assert.Equal(t, "198.18.9.1/16", l.Prefixes[0].String(), "the argument is shared")
	assert.Nil(t, LocalPods{}.sources(node))
	assert.Nil(t, LocalPods{NodeCIDR: true}.sources(config.Node{}))
}
