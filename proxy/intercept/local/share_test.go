package local

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

// needsSharing skips a test where VIPs cannot share listeners.
func needsSharing(t *testing.T, r *Routes) {
	t.Helper()
	if err := r.Shares(false); err != nil {
		t.Skip("VIPs cannot share listeners here: " + err.Error())
	}
}

// listenAs answers with a name, and the address that the client has dialled.
func listenAs(t *testing.T, name, address string) *net.TCPListener {
	t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // whose sockets cannot be shared
	l, err := lc.Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(conn, "%s %s", name, conn.LocalAddr())
			conn.Close()
		}
	}()
	return l.(*net.TCPListener)
}

// share hands over a listener that answers with a name.
func share(t *testing.T, r *Routes, name, address string) *net.TCPListener {
	t.Helper()
	l := listenAs(t, name, address)
	raw, err := l.SyscallConn()
	require.NoError(t, err)
	var serr error
	require.NoError(t, raw.Control(func(fd uintptr) { serr = r.Share(netip.MustParseAddrPort(address), int(fd)) }))
	require.NoError(t, serr)
	return l
}

// answer is what a client gets, or "refused", or "silence".
func answer(t *testing.T, from *lab.Host, address string, patience time.Duration) (said string) {
	t.Helper()
	require.NoError(t, from.Do(func() error {
		conn, err := net.DialTimeout("tcp", address, patience)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			said = "refused"
			return nil
		case errors.Is(err, unix.ETIMEDOUT), err != nil && err.(net.Error).Timeout():
			said = "silence"
			return nil
		case err != nil:
			return err
		}
		defer conn.Close()
		all, err := io.ReadAll(conn)
		said = string(all)
		if errors.Is(err, syscall.ECONNRESET) {
			said, err = "reset", nil
		}
		return err
	}))
	return said
}

// at has a VIP share the listener at a proxy port.
func at(r *Routes, vip string, port uint16) intercept.Binding {
	b := tcp(vip, 80)
	b.Listen = r.BindAddr(b.VIP, port)
	return b
}

// Whatever happens to VIPs that share, their clients come to the right listener or are refused, and never to another process
// that listens on their port at all addresses of the node. That one has its own clients all along.
func TestVIPsThatShare(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		client, err := node.AddHost("client", "198.18.3.2/24", "2001:db8:3::2/64")
		require.NoError(t, err)
		r := start(t, testConfig("198.18.100.0/24", "2001:db8:100::/108"))
		needsSharing(t, r)
		listenAs(t, "foreign", ":80")
		for _, c := range []struct{ vip, other, own, one, two string }{
			{"198.18.100.1", "198.18.110.1", "198.18.255.1", "127.0.0.1:61001", "127.0.0.1:61002"},
			{"2001:db8:100::1", "2001:db8:110::1", "2001:db8:ff::1", "[::1]:61001", "[::1]:61002"},
		} {
			one := share(t, r, "one", c.one)
			share(t, r, "two", c.two)
			commit := func(bindings ...intercept.Binding) {
				t.Helper()
				require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: bindings}))
				require.True(t, verify(t, r))
			}
			expect := func(vip, want string) {
				t.Helper()
				address := net.JoinHostPort(vip, "80")
				if want != "refused" {
					want += " " + address
				}
				for _, h := range []*lab.Host{client, node} {
					assert.Equal(t, want, answer(t, h, address, time.Minute), "%s from %s", vip, h.Name)
				}
			}
			commit(at(r, c.vip, 61001), at(r, c.other, 61002))
			expect(c.vip, "one")
			expect(c.other, "two")
			expect(c.own, "foreign")
			commit(at(r, c.vip, 61002), at(r, c.other, 61001))
			expect(c.vip, "two")
			expect(c.other, "one")
			commit(at(r, c.vip, 61099), at(r, c.other, 61001))
			expect(c.vip, "refused")
			expect(c.other, "one")
			commit(at(r, c.vip, 61001), at(r, c.other, 61002))
			require.NoError(t, one.Close())
			require.Eventually(t, func() bool { // once the listener's goroutine is done with it
				return answer(t, client, net.JoinHostPort(c.vip, "80"), time.Minute) == "refused"
			}, time.Minute, time.Millisecond)
			expect(c.vip, "refused")
			expect(c.other, "two")
			share(t, r, "again", c.one)
			expect(c.vip, "again")
			commit(at(r, c.vip, 61001))
			expect(c.vip, "again")
			assert.NotContains(t, answer(t, client, net.JoinHostPort(c.other, "80"), 300*time.Millisecond), "two")
			expect(c.own, "foreign")
			stats := r.Stats().Of(netip.MustParseAddr(c.vip).Is6())
			assert.Equal(t, 1, stats.Shared)
			commit()
			expect(c.vip, "foreign") // the Service CIDR is still local, as with any port that no Service has
			assert.Zero(t, r.Stats().Of(netip.MustParseAddr(c.vip).Is6()).Shared)
		}
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{at(r, "198.18.100.1", 61001)}}))
		require.NoError(t, r.Cleanup(t.Context()))
		assert.False(t, r.shared.lookup.attached(), "nothing is left")
	})
}

// What others detach is noticed, and attached again.
func TestSharingIsRepaired(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		r := start(t, testConfig())
		needsSharing(t, r)
		share(t, r, "one", "127.0.0.1:61001")
		want := intercept.State{Bindings: []intercept.Binding{at(r, "198.18.110.1", 61001)}}
		for range 2 {
			require.NoError(t, r.Commit(t.Context(), want))
			require.True(t, verify(t, r))
			require.Equal(t, "one 198.18.110.1:80", answer(t, node, "198.18.110.1:80", time.Minute))
			require.NoError(t, r.shared.lookup.link.(interface{ Detach() error }).Detach())
			require.Equal(t, "refused", answer(t, node, "198.18.110.1:80", time.Minute))
			require.False(t, verify(t, r))
		}
	})
}

// One that has no room any more does not hold up the others, is served by nobody, and is once there is room.
func TestTooManyVIPsShare(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		r := start(t, testConfig())
		needsSharing(t, r)
		var err error
		r.shared.lookup, err = newLookup(1)
		require.NoError(t, err)
		share(t, r, "one", "127.0.0.1:61001")
		first, second := at(r, "198.18.110.1", 61001), at(r, "198.18.110.2", 61001)
		err = r.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{first, second}})
		var be *intercept.BindingError
		require.ErrorAs(t, err, &be)
		assert.Equal(t, second.VIP, be.Binding.VIP)
		assert.ErrorContains(t, err, "1 addresses share listeners, as many as can")
		assert.NotContains(t, ours(t, node), "198.18.110.2")
		assert.Equal(t, "one 198.18.110.1:80", answer(t, node, "198.18.110.1:80", time.Minute))
		for range 2 { // what it had is removed last
			err = r.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{second}})
		}
		require.NoError(t, err)
		assert.Equal(t, "one 198.18.110.2:80", answer(t, node, "198.18.110.2:80", time.Minute))
	})
}

// Where the kernel has no such thing, or does not let us, all is as it would be without, and a binding that is to share after
// all is an error.
func TestSharingIsNotPossible(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		r, err := newRoutes(testConfig(), kernel{})
		require.NoError(t, err)
		t.Cleanup(func() { r.Close() })
		r.shared.unable = errors.New("no such thing")
		_, err = intercept.SharerOf(r, false)
		assert.ErrorContains(t, err, "no such thing")
		_, err = intercept.SharerOf(intercept.Families{IPv4: r, IPv6: intercept.None{}}, false)
		assert.ErrorContains(t, err, "no such thing")
		err = r.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{at(r, "198.18.110.1", 61001), tcp("198.18.110.2", 80)}})
		var be *intercept.BindingError
		require.ErrorAs(t, err, &be)
		assert.ErrorContains(t, err, "no such thing")
		assert.Equal(t, map[string]string{"198.18.110.2": "198.18.255.1"}, ours(t, node))
		assert.True(t, verify(t, r))
	})
}
