package iptables

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

// steady is a UDP client that keeps its port and never stops sending, so that its flow never expires.
type steady struct {
	t         *testing.T
	conn      net.Conn
	questions int
}

func newSteady(t *testing.T, from *lab.Host, to intercept.VIP) *steady {
	t.Helper()
	s := &steady{t: t}
	require.NoError(t, from.Do(func() (err error) {
		s.conn, err = net.Dial("udp", netip.AddrPortFrom(to.Addr, to.Port).String())
		return err
	}))
	t.Cleanup(func() { s.conn.Close() })
	return s
}

// ask returns the answer, "" if there is none for a while. Late ones to earlier questions do not count.
func (s *steady) ask() string {
	s.questions++
	number := fmt.Sprintf(" #%d", s.questions)
	s.conn.SetDeadline(time.Now().Add(briefly))
	s.conn.Write([]byte("?" + number))
	for {
		buf := make([]byte, 100)
		n, err := s.conn.Read(buf)
		if answer, ours := strings.CutSuffix(string(buf[:n]), number); err != nil || ours {
			return answer
		}
	}
}

func (s *steady) eventually(want string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.ask() == want }, patience, time.Millisecond, want)
}

func udpBinding(v intercept.VIP, port uint16) intercept.Binding {
	return intercept.Binding{VIP: v, Listen: wildcard(v.Addr.Is6(), port), Owner: "default/dns"}
}

// flowIDs names the tracked flows to port n: an entry that is made again has another id.
func flowIDs(t *testing.T, node *lab.Host, family string, n uint16) string {
	t.Helper()
	out := sh(t, node, fmt.Sprintf("conntrack -L -f %s -p udp -o id --dport %d 2>/dev/null | grep -o 'id=[0-9]*' | sort || true", family, n))
	return strings.TrimSpace(out)
}

// trackFlows turns connection tracking on, which a fresh namespace does without until it has some NAT.
func trackFlows(t *testing.T, node *lab.Host) {
	t.Helper()
	sh(t, node, "iptables -t nat -A POSTROUTING -s 203.0.113.0/24 -j MASQUERADE; ip6tables -t nat -A POSTROUTING -s 2001:db8:dead::/48 -j MASQUERADE")
}

func TestFlowOlderThanItsRule(t *testing.T) {
	for _, c := range []struct{ name, vip, family string }{
		{"ClusterIP", "198.18.0.53", "ipv4"}, {"ClusterIP6", "2001:db8::53", "ipv6"}, {"NodePort", "0.0.0.0", "ipv4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lab.Run(t, func(t *testing.T, node *lab.Host) {
				pod, err := node.AddHost("pod", "198.18.1.2/24", "2001:db8:1::2/64")
				require.NoError(t, err)
				trackFlows(t, node)
				serve(t, 61053)
				v := vip(c.vip, 5353, intercept.UDP)
				to := v
				if v.NodePort() {
					to.Addr = netip.MustParseAddr("198.18.1.1")
				}
				client := newSteady(t, pod, to)
				// A datagram that waits for a neighbour's address and is given up leaves no entry, so more than one may be needed.
				require.Eventually(t, func() bool {
					require.Equal(t, "", client.ask())
					return len(flowIDs(t, node, c.family, 5353)) > 0
				}, patience, time.Millisecond, "the flow is tracked, and without translation")

				r := start(t, testConfig(ModeNFT))
				require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{udpBinding(v, 61053)}}))
				client.eventually("udp 61053")
			})
		})
	}
}

// A client that has sent its SYN in vain gets through with the next one: its entry does not keep it from the new rule, nor
// later connections from the same port.
func TestConnectionOlderThanItsRule(t *testing.T) {
	for _, c := range []struct{ name, vip, family string }{
		{"ClusterIP", "198.18.0.53", "ipv4"}, {"ClusterIP6", "2001:db8::53", "ipv6"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lab.Run(t, func(t *testing.T, node *lab.Host) {
				pod, err := node.AddHost("pod", "198.18.1.2/24", "2001:db8:1::2/64")
				require.NoError(t, err)
				trackFlows(t, node)
				v := vip(c.vip, 5353, intercept.TCP)
				listener, err := net.Listen("tcp", wildcard(v.Addr.Is6(), 61053).String())
				require.NoError(t, err)
				defer listener.Close()
				connected := make(chan error, 1)
				go func() {
					connected <- pod.Do(func() error {
						conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(v.Addr, v.Port).String(), 2*patience)
						if err == nil {
							conn.Close()
						}
						return err
					})
				}()
				require.Eventually(t, func() bool {
					out, err := node.Output("conntrack", "-L", "-f", c.family, "-p", "tcp", "--dport", "5353")
					return err == nil && strings.Contains(out, "UNREPLIED")
				}, patience, time.Millisecond, "the SYN is tracked, and without translation")

				r := start(t, testConfig(ModeNFT))
				require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{
					{VIP: v, Listen: wildcard(v.Addr.Is6(), 61053), Owner: "default/web"},
				}}))
				require.NoError(t, <-connected)
			})
		})
	}
}

func TestFlowToAProxyPortThatChanged(t *testing.T) {
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		pod, err := node.AddHost("pod", "198.18.1.2/24")
		require.NoError(t, err)
		serve(t, 61053)
		serve(t, 61054)
		v := vip("198.18.0.53", 53, intercept.UDP)
		r := start(t, testConfig(ModeNFT))
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{udpBinding(v, 61053)}}))
		client := newSteady(t, pod, v)
		client.eventually("udp 61053")
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{udpBinding(v, 61054)}}))
		client.eventually("udp 61054")

		// The same from a new process, which knows nothing of the flow.
		again := start(t, testConfig(ModeNFT))
		require.NoError(t, again.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{udpBinding(v, 61053)}}))
		client.eventually("udp 61053")
	})
}

func TestRightFlowsAreLeftAlone(t *testing.T) {
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		pod, err := node.AddHost("pod", "198.18.1.2/24")
		require.NoError(t, err)
		other, err := node.AddHost("other", "198.18.2.2/24")
		require.NoError(t, err)
		serve(t, 61053)
		serve(t, 61054)
		kept, changed := vip("198.18.0.53", 53, intercept.UDP), vip("198.18.0.54", 53, intercept.UDP)
		nodePort := vip("0.0.0.0", 30053, intercept.UDP)
		r := start(t, testConfig(ModeNFT))
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{udpBinding(kept, 61053), udpBinding(changed, 61053), udpBinding(nodePort, 61053)}}))
		client, mover := newSteady(t, pod, kept), newSteady(t, pod, changed)
		client.eventually("udp 61053")
		mover.eventually("udp 61053")
		outside := newSteady(t, pod, vip("198.18.2.2", 53, intercept.UDP)) // forwarded, no business of ours
		outside.ask()
		transit := newSteady(t, pod, vip("198.18.2.2", 30053, intercept.UDP)) // a NodePort's number, on another host
		transit.ask()
		_ = other
		var before, passing string
		require.Eventually(t, func() bool {
			before, passing = flowIDs(t, node, "ipv4", 53), flowIDs(t, node, "ipv4", 30053)
			return len(strings.Fields(before)) == 3 && len(strings.Fields(passing)) == 1
		}, patience, time.Millisecond)

		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{udpBinding(kept, 61053), udpBinding(changed, 61054), udpBinding(nodePort, 61054)}}))
		after := flowIDs(t, node, "ipv4", 53)
		assert.Len(t, strings.Fields(after), 2, "one went")
		for _, id := range strings.Fields(after) {
			assert.Contains(t, before, id)
		}
		assert.Equal(t, passing, flowIDs(t, node, "ipv4", 30053))
		assert.EqualValues(t, 1, r.Stats().IPv4.FlowsRemoved)
		client.eventually("udp 61053")
		mover.eventually("udp 61054")
	})
}

func TestFlowsOfADeletedServiceGo(t *testing.T) {
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		pod, err := node.AddHost("pod", "198.18.1.2/24")
		require.NoError(t, err)
		serve(t, 61053)
		v := vip("198.18.0.53", 53, intercept.UDP)
		r := start(t, testConfig(ModeNFT))
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{udpBinding(v, 61053)}}))
		client := newSteady(t, pod, v)
		client.eventually("udp 61053")
		require.NoError(t, r.Commit(t.Context(), intercept.State{}))
		assert.Empty(t, flowIDs(t, node, "ipv4", 53))
		assert.Equal(t, "", client.ask(), "nothing leads to the old listener any more")
	})
}

// brokenFlows fails as many times as told.
type brokenFlows struct {
	flowTable
	failures, calls int
}

func (b *brokenFlows) remove(v6 bool, stale func(*netlink.ConntrackFlow) bool) (uint, error) {
	b.calls++
	if b.failures > 0 {
		b.failures--
		return 0, errors.New("netlink is out of order")
	}
	return b.flowTable.remove(v6, stale)
}

func TestFlowsAreTriedAgain(t *testing.T) {
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		pod, err := node.AddHost("pod", "198.18.1.2/24")
		require.NoError(t, err)
		trackFlows(t, node)
		serve(t, 61053)
		v := vip("198.18.0.53", 53, intercept.UDP)
		client := newSteady(t, pod, v)
		require.Equal(t, "", client.ask())
		flows := &brokenFlows{flowTable: kernelFlows{}, failures: 2} // once per family
		h := newHost(programs{})
		h.flows = flows
		r, err := newRules(t.Context(), testConfig(ModeNFT), h)
		require.NoError(t, err)
		bindings := []intercept.Binding{udpBinding(v, 61053)}
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}), "the rules are in")
		assert.ErrorContains(t, r.Stats().IPv4.FlowsErr, "out of order")
		ok, err := r.Verify(t.Context())
		require.NoError(t, err)
		assert.False(t, ok, "a Commit is asked for")
		assert.Equal(t, "", client.ask())

		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
		assert.NoError(t, r.Stats().IPv4.FlowsErr)
		client.eventually("udp 61053")
		ok, err = r.Verify(t.Context())
		require.NoError(t, err)
		assert.True(t, ok)
		calls := flows.calls
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
		assert.Equal(t, calls, flows.calls, "the table is read only when UDP bindings change")
	})
}

// Rules that others removed let flows begin that know nothing of them. Whoever puts the rules back, a check or the change
// of some other Service, has to end these flows as well.
func TestFlowsBegunWhileRulesWereGone(t *testing.T) {
	for _, heal := range []string{"repair", "another change"} {
		t.Run(heal, func(t *testing.T) {
			t.Parallel()
			lab.Run(t, func(t *testing.T, node *lab.Host) {
				pod, err := node.AddHost("pod", "198.18.1.2/24")
				require.NoError(t, err)
				trackFlows(t, node)
				serve(t, 61053)
				v := vip("198.18.0.53", 53, intercept.UDP)
				bindings := []intercept.Binding{udpBinding(v, 61053)}
				r := start(t, testConfig(ModeNFT))
				require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
				sh(t, node, "iptables -t nat -F REDIAL-SERVICES")
				client := newSteady(t, pod, v)
				require.Equal(t, "", client.ask())

				if heal == "another change" {
					bindings = append(bindings, intercept.Binding{VIP: vip("198.18.0.80", 80, intercept.TCP), Listen: wildcard(false, 61053), Owner: "default/web"})
				} else {
					ok, err := r.Verify(t.Context())
					require.NoError(t, err)
					require.False(t, ok)
				}
				require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
				client.eventually("udp 61053")
			})
		})
	}
}
