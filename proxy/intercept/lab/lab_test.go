package lab

import (
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func TestLoopbackIsOurs(t *testing.T) {
	links, err := net.Interfaces()
	require.NoError(t, err)
	require.Len(t, links, 1)
	assert.Equal(t, "lo", links[0].Name)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	conn.Close()
}

func TestHostsReachEachOtherThroughTheNode(t *testing.T) {
	Run(t, func(t *testing.T, node *Host) {
		a, err := node.AddHost("a", "198.18.1.2/24", "2001:db8:1::2/64")
		require.NoError(t, err)
		b, err := node.AddHost("b", "198.18.2.2/24", "2001:db8:2::2/64")
		require.NoError(t, err)
		for _, address := range []string{"198.18.2.2:0", "[2001:db8:2::2]:0"} {
			var l net.Listener
			require.NoError(t, b.Do(func() (err error) { l, err = net.Listen("tcp", address); return err }))
			require.NoError(t, a.Do(func() error {
				conn, err := net.Dial("tcp", l.Addr().String())
				if err == nil {
					conn.Close()
				}
				return err
			}), "from a to b")
			_, err = net.Dial("tcp", l.Addr().String())
			assert.NoError(t, err, "from the node to b")
		}
		out, err := a.Output("ip", "-o", "addr", "show", "eth0")
		require.NoError(t, err)
		assert.Contains(t, out, "198.18.1.2/24")
	})
}

func TestProcessIsAlone(t *testing.T) {
	Run(t, func(t *testing.T, node *Host) {
		assert.Equal(t, 1, os.Getpid(), "init of its own PID namespace")
		links, err := net.Interfaces()
		require.NoError(t, err)
		for _, l := range links {
			assert.Contains(t, []string{"lo", "to-world"}, l.Name)
		}
		entries, err := os.ReadDir("/run")
		require.NoError(t, err)
		assert.Empty(t, entries, "/run is fresh, so that iptables' lock is not shared")
	})
}
