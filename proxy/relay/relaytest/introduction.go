package relaytest

import (
	"bufio"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/pires/go-proxyproto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
	"redial/proxy/relay"
)

// introduced reads the header and echoes what follows.
func introduced(headers chan<- *proxyproto.Header) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		r := bufio.NewReader(c)
		h, err := proxyproto.Read(r)
		if err != nil {
			h = nil
		}
		headers <- h
		io.Copy(struct{ io.Writer }{c}, r)
	}
}

func testProxyProtocol(t *testing.T, new New) {
	for _, address := range []string{"127.0.0.1", "::1"} {
		headers := make(chan *proxyproto.Header, 1)
		pl, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
		if err != nil {
			t.Log("no IPv6 on this machine: " + err.Error())
			continue
		}
		serveOn(t, pl, introduced(headers))
		_, l := startOn(t, new, relay.Config{}, balance(pl.Addr().(*net.TCPAddr).AddrPort()), address)
		for version := byte(1); version <= 2; version++ {
			l.Configure(relay.Settings{ProxyProtocol: version})
			conn := dial(t, l)
			h := <-headers
			require.NotNil(t, h, address)
			assert.Equal(t, version, h.Version)
			assert.Equal(t, proxyproto.PROXY, h.Command)
			assert.Equal(t, conn.LocalAddr().String(), h.SourceAddr.String())
			assert.Equal(t, l.Addr().String(), h.DestinationAddr.String())
			roundTrip(t, conn, "after it")
		}
		assert.EqualValues(t, 2*len("after it"), l.Stats().BytesIn, "the header is not the client's")
	}
}

// It has got the header only, which the next one gets as well.
func testProxyProtocolEarlyClose(t *testing.T, new New) {
	for name, end := range earlyEnds {
		headers := make(chan *proxyproto.Header, 2)
		leaving := backend(t, func(c *net.TCPConn) {
			h, _ := proxyproto.Read(bufio.NewReader(c))
			headers <- h
			end.serve(c)
		})
		b := balance(leaving, backend(t, introduced(headers)))
		_, l := start(t, new, relay.Config{}, b)
		l.Configure(relay.Settings{ProxyProtocol: 2})
		conn := dial(t, l)
		require.NotNil(t, <-headers, name)
		require.NotNil(t, <-headers, name)
		roundTrip(t, conn, "served all the same")
		assert.Equal(t, []netip.AddrPort{leaving}, b.failures(), name)
	}
}

// What counts is the address that the client has dialled, not the one that a rule has made of it.
func testOriginalDestination(t *testing.T, new New) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		client, err := node.AddHost("client", "198.18.2.2/24", "2001:db8:2::2/64")
		require.NoError(t, err)
		for _, c := range []struct{ tool, address, vip, loopback string }{
			{"iptables", "0.0.0.0", "198.18.200.1", "127.0.0.1"},
			{"ip6tables", "::", "2001:db8:200::1", "::1"},
		} {
			headers := make(chan *proxyproto.Header, 1)
			pl, err := net.Listen("tcp", net.JoinHostPort(c.loopback, "0"))
			require.NoError(t, err)
			serveOn(t, pl, introduced(headers))
			b := balance(pl.Addr().(*net.TCPAddr).AddrPort())
			b.asks = true
			_, l := startOn(t, new, relay.Config{}, b, c.address)
			l.Configure(relay.Settings{ProxyProtocol: 2})
			if out, err := node.Output(c.tool, "-t", "nat", "-A", "PREROUTING", "-d", c.vip, "-p", "tcp", "--dport", "80",
				"-j", "REDIRECT", "--to-ports", portOf(l)); err != nil {
				t.Skip("cannot redirect: " + out + err.Error())
			}
			var conn net.Conn
			require.NoError(t, client.Do(func() (err error) {
				conn, err = net.DialTimeout("tcp", net.JoinHostPort(c.vip, "80"), patience)
				return err
			}))
			defer conn.Close()
			h := <-headers
			require.NotNil(t, h)
			assert.Equal(t, net.JoinHostPort(c.vip, "80"), h.DestinationAddr.String())
			assert.Equal(t, conn.LocalAddr().String(), h.SourceAddr.String())
			b.mu.Lock()
			assert.Equal(t, []netip.Addr{netip.MustParseAddr(c.vip)}, b.dialled)
			b.mu.Unlock()
		}
	})
}
