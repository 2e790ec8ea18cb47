package iptables

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

// A connection that is being dropped is made as soon as it is not any more: its client goes on asking, and gives up after
// two minutes only.
func TestDroppedConnectionsAreMadeOnceServed(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		pod, client := addPodAndClient(t, node)
		serveEveryKind(t)
		r := start(t, testConfig(mode))
		served := everyKind()
		dropped := everyKind()
		for i := range dropped {
			dropped[i].Listen = nowhere
		}
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: dropped}))
		var waiting []silence
		for _, h := range []*lab.Host{node, pod, client} {
			waiting = append(waiting, call(t, h, []intercept.VIP{vip("10.96.0.10", 80, intercept.TCP), vip("fd00:10:96::10", 80, intercept.TCP),
				vip(nodeIP4, 30080, intercept.TCP), vip(nodeIP6, 30080, intercept.TCP)}))
		}
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: served}))
		for _, s := range waiting {
			for i, fd := range s.fds {
				require.Eventually(t, func() bool {
					info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
					return err == nil && info.State != unix.BPF_TCP_SYN_SENT && info.State != unix.BPF_TCP_CLOSE
				}, patience, 10*time.Millisecond, "%s from %s", s.vips[i], s.host.Name)
			}
		}
	})
}

// Somebody else's translation to the discard port of another machine is none of our business.
func TestDiscardPortOfOthers(t *testing.T) {
	inModes(t, func(t *testing.T, node *lab.Host, mode Mode) {
		_, client := addPodAndClient(t, node)
		require.NoError(t, client.Do(func() error {
			l, err := net.Listen("tcp4", ":9")
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					conn.Write([]byte("discard"))
					conn.Close()
				}
			}()
			return nil
		}))
		sh(t, node, fmt.Sprintf("iptables-%s -t nat -A OUTPUT -p tcp -d 203.0.113.99 --dport 80 -j DNAT --to-destination 198.18.3.2:9", mode))
		dropped := bind("203.0.113.1", 80, intercept.TCP, 0, "ns/dropped")
		dropped.Listen = nowhere
		require.NoError(t, start(t, testConfig(mode)).Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{dropped}}))
		answer, err := ask(node, vip("203.0.113.99", 80, intercept.TCP))
		require.NoError(t, err)
		assert.Equal(t, "discard", answer)
	})
}
