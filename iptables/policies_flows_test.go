package iptables

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

// A client that keeps its port follows each change of policy, and is left alone otherwise.
func TestFlowsFollowPolicies(t *testing.T) {
	for _, by := range []string{"prefix", "interface"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			lab.Run(t, func(t *testing.T, node *lab.Host) {
				pod, err := node.AddHost("pod", "198.18.1.2/24")
				require.NoError(t, err)
				serve(t, 61053)
				serve(t, 61054)
				binding := udpBinding(vip("198.18.0.53", 53, intercept.UDP), 61053)
				r := start(t, testConfig(ModeNFT))
				other := uint16(1)
				commit := func(why string, change func(*intercept.State, *intercept.Binding)) string {
					t.Helper()
					b := binding
					state := intercept.State{Pods: []intercept.PodSource{{Interface: "to-pod"}}}
					if by == "prefix" {
						state.Pods = []intercept.PodSource{{Prefix: netip.MustParsePrefix("198.18.1.0/24")}}
					}
					change(&state, &b)
					other++ // something else changes each time, so that rules are written
					state.Bindings = []intercept.Binding{b, bind("198.18.0.80", 80, intercept.TCP, other, "default/web")}
					require.NoError(t, r.Commit(t.Context(), state), why)
					require.NoError(t, r.Stats().IPv4.FlowsErr)
					return flowIDs(t, node, "ipv4", 53)
				}
				local := func(_ *intercept.State, b *intercept.Binding) { b.Local = wildcard(false, 61054) }
				commit("simple", func(*intercept.State, *intercept.Binding) {})
				client := newSteady(t, pod, binding.VIP)
				client.eventually("udp 61053")
				assert.Empty(t, commit("local", local))
				client.eventually("udp 61054")
				before := flowIDs(t, node, "ipv4", 53)
				require.NotEmpty(t, before)
				assert.Equal(t, before, commit("the same again", local))
				assert.Empty(t, commit("other pods", func(s *intercept.State, b *intercept.Binding) {
					local(s, b)
					s.Pods = []intercept.PodSource{{Interface: "to-other"}}
				}))
				client.eventually("udp 61053")
				assert.Empty(t, commit("these pods again", local))
				client.eventually("udp 61054")
				assert.Empty(t, commit("no pod any more", func(s *intercept.State, b *intercept.Binding) { local(s, b); s.Pods = nil }))
				client.eventually("udp 61053")

				for why, drop := range map[string]func(*intercept.State, *intercept.Binding){
					"other sources": func(_ *intercept.State, b *intercept.Binding) { b.Sources = prefixes("198.18.2.0/24") },
					"dropped":       func(_ *intercept.State, b *intercept.Binding) { b.Listen = netip.AddrPort{} },
				} {
					assert.Empty(t, commit(why, drop), why)
					assert.Equal(t, "", client.ask(), why)
					commit("right sources", func(_ *intercept.State, b *intercept.Binding) { b.Sources = prefixes("198.18.1.0/24") })
					client.eventually("udp 61053")
					before = flowIDs(t, node, "ipv4", 53)
					assert.Equal(t, before, commit("more sources", func(_ *intercept.State, b *intercept.Binding) {
						b.Sources = prefixes("198.18.1.0/24", "198.18.3.0/24")
					}))
				}
			})
		})
	}
}

// What is dropped on its way from the node is tracked nevertheless, with the discard port.
func TestFlowsOfTheNodeFollowPolicies(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		serve(t, 61053)
		v, nodePort := vip("198.18.0.53", 53, intercept.UDP), vip("0.0.0.0", 30053, intercept.UDP)
		dropped := udpBinding(v, 61053)
		dropped.Listen = netip.AddrPort{}
		r := start(t, testConfig(ModeNFT))
		commit := func(s intercept.State, bindings ...intercept.Binding) {
			s.Bindings = bindings
			require.NoError(t, r.Commit(t.Context(), s))
		}
		commit(intercept.State{}, dropped, udpBinding(nodePort, 61053))
		client, port := newSteady(t, node, v), newSteady(t, node, vip(nodeIP4, 30053, intercept.UDP))
		port.eventually("udp 61053")
		require.Equal(t, "", client.ask())
		dead := flowIDs(t, node, "ipv4", 53)
		require.NotEmpty(t, dead)
		commit(intercept.State{}, dropped, udpBinding(nodePort, 61053), bind("198.18.0.80", 80, intercept.TCP, 1, "default/web"))
		assert.Equal(t, dead, flowIDs(t, node, "ipv4", 53), "dropped as it should be")
		commit(intercept.State{NodePorts: prefixes("198.18.1.0/24")}, udpBinding(v, 61053), udpBinding(nodePort, 61053))
		client.eventually("udp 61053")
		assert.Empty(t, flowIDs(t, node, "ipv4", 30053), "the NodePort is closed here")
		commit(intercept.State{NoLocalhostNodePorts: true}, dropped, udpBinding(nodePort, 61053))
		port.eventually("udp 61053")
		require.Equal(t, "", client.ask())
		commit(intercept.State{})
		assert.Empty(t, flowIDs(t, node, "ipv4", 53), "no VIP any more")
	})
}
