package local

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

func tcp(addr string, port uint16) intercept.Binding {
	a := netip.MustParseAddr(addr)
	return intercept.Binding{VIP: intercept.VIP{Addr: a, Port: port, Protocol: intercept.TCP}, Listen: netip.AddrPortFrom(a, port), Owner: "ns/" + addr}
}

func state(addrs ...string) intercept.State {
	var s intercept.State
	for _, a := range addrs {
		s.Bindings = append(s.Bindings, tcp(a, 80))
	}
	return s
}

func sh(t *testing.T, h *lab.Host, line string) string {
	t.Helper()
	out, err := h.Output("sh", "-ec", line)
	require.NoError(t, err)
	return out
}

// ours are the destinations of our routes, with their sources.
func ours(t *testing.T, node *lab.Host) map[string]string {
	t.Helper()
	found := map[string]string{}
	for line := range strings.Lines(sh(t, node, "ip -4 route show table all proto 214; ip -6 route show table all proto 214")) {
		fields := strings.Fields(line)
		source := ""
		for i, f := range fields {
			if f == "src" {
				source = fields[i+1]
			}
		}
		found[fields[1]] = source
	}
	return found
}

func verify(t *testing.T, r *Routes) bool {
	t.Helper()
	ok, err := r.Verify(t.Context())
	require.NoError(t, err)
	return ok
}

// Where several hosts share a network, a VIP of it would be claimed by all of them.
func TestAddressesOfANetworkOfTheNode(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		_, err := node.AddHost("lan", "198.18.3.2/24", "2001:db8:3::2/64")
		require.NoError(t, err)
		r := start(t, testConfig())
		want := state("198.18.3.77", "198.18.110.1", "2001:db8:3::77")
		err = r.Commit(t.Context(), want)
		var be *intercept.BindingError
		require.ErrorAs(t, err, &be)
		assert.Equal(t, "ns/198.18.3.77", be.Binding.Owner)
		for _, part := range []string{"to-lan", "198.18.3.0/24", "net.ipv4.conf.to-lan.arp_ignore"} {
			assert.ErrorContains(t, err, part)
		}
		assert.Equal(t, 1, r.Stats().IPv4.Refused)
		assert.Equal(t, map[string]string{"198.18.110.1": "198.18.255.1", "2001:db8:3::77": "2001:db8:ff::1"}, ours(t, node))
		assert.True(t, verify(t, r), "what is refused is not missed")

		sh(t, node, "echo 1 > /proc/sys/net/ipv4/conf/to-lan/arp_ignore")
		require.NoError(t, r.Prepare(t.Context(), nil), "as each attempt begins")
		require.NoError(t, r.Commit(t.Context(), want))
		assert.Contains(t, ours(t, node), "198.18.3.77")
	})
}

// What the error says about ARP is so: with the default a neighbour gets an answer, with arp_ignore it does not; and IPv6
// neighbours get none in any case.
func TestNeighboursAndVIPs(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		lan, err := node.AddHost("lan", "198.18.3.2/24", "2001:db8:3::2/64")
		require.NoError(t, err)
		require.NoError(t, kernel{}.set(netip.MustParsePrefix("198.18.3.77/32"), netip.Addr{}, false))
		require.NoError(t, kernel{}.set(netip.MustParsePrefix("2001:db8:3::77/128"), netip.Addr{}, false))
		resolves := func(addr string) bool {
			sh(t, lan, "ip neigh flush dev eth0")
			err := lan.Do(func() error {
				c, err := net.DialTimeout("tcp", net.JoinHostPort(addr, "80"), 30*time.Second)
				if err == nil {
					c.Close()
				}
				return err
			})
			return errors.Is(err, syscall.ECONNREFUSED)
		}
		assert.True(t, resolves("198.18.3.77"))
		assert.False(t, resolves("2001:db8:3::77"))
		sh(t, node, "echo 1 > /proc/sys/net/ipv4/conf/to-lan/arp_ignore")
		assert.False(t, resolves("198.18.3.77"))
		assert.True(t, resolves("198.18.3.1"), "its own address it tells")
	})
}

func TestGatewayIsNotTaken(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		r := start(t, testConfig())
		err := r.Commit(t.Context(), state("198.18.255.2", "2001:db8:ff::2", "198.18.110.1"))
		assert.ErrorContains(t, err, "198.18.255.2 is a gateway")
		assert.ErrorContains(t, err, "2001:db8:ff::2 is a gateway")
		assert.Len(t, ours(t, node), 1)
	})
}

// An address that the node has by itself gets no route, is never removed, and may come and go.
func TestAddressesOfTheNodeItself(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		sh(t, node, "ip addr add 198.18.110.1/32 dev to-world; ip -6 addr add 2001:db8:110::1/128 dev to-world nodad; "+
			"ip route add local 198.18.111.0/24 dev lo")
		before := sh(t, node, dump)
		r := start(t, testConfig())
		want := state("198.18.110.1", "2001:db8:110::1", "198.18.111.5", "198.18.112.5")
		require.NoError(t, r.Commit(t.Context(), want))
		assert.Equal(t, map[string]string{"198.18.112.5": "198.18.255.1"}, ours(t, node))

		sh(t, node, "ip addr del 198.18.110.1/32 dev to-world")
		assert.False(t, verify(t, r))
		require.NoError(t, r.Commit(t.Context(), want))
		assert.True(t, verify(t, r))
		assert.Contains(t, ours(t, node), "198.18.110.1")

		sh(t, node, "ip addr add 198.18.110.1/32 dev to-world")
		assert.False(t, verify(t, r), "ours is superfluous now")
		require.NoError(t, r.Commit(t.Context(), want))
		assert.NotContains(t, ours(t, node), "198.18.110.1")
		require.NoError(t, r.Cleanup(t.Context()))
		assert.ElementsMatch(t, strings.Split(before, "\n"), strings.Split(sh(t, node, dump), "\n"))
	})
}

// The source of the node's own clients follows its addresses; the kernel drops routes whose source is gone.
func TestSourceFollowsTheNode(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		r := start(t, testConfig("198.18.100.0/24"))
		want := state("198.18.100.1", "198.18.110.1", "2001:db8:110::1")
		require.NoError(t, r.Commit(t.Context(), want))
		assert.Equal(t, map[string]string{"198.18.100.0/24": "198.18.255.1", "198.18.110.1": "198.18.255.1", "2001:db8:110::1": "2001:db8:ff::1"}, ours(t, node))
		for _, step := range []struct{ line, v4, v6 string }{
			{"ip addr add 198.18.254.1/24 dev to-world; ip addr del 198.18.255.1/24 dev to-world", "198.18.254.1", "2001:db8:ff::1"},
			{"ip -6 addr add 2001:db8:fe::1/64 dev to-world nodad; ip -6 addr del 2001:db8:ff::1/64 dev to-world", "198.18.254.1", "2001:db8:fe::1"},
			{"ip addr flush dev to-world", "127.0.0.1", "::1"},
			{"ip addr add 198.18.255.1/24 dev to-world; ip -6 addr add 2001:db8:ff::1/64 dev to-world nodad", "198.18.255.1", "2001:db8:ff::1"},
			{"ip addr add 198.18.253.1/24 dev to-world", "198.18.255.1", "2001:db8:ff::1"},
		} {
			sh(t, node, step.line)
			if !verify(t, r) {
				require.NoError(t, r.Commit(t.Context(), want), step.line)
			}
			assert.True(t, verify(t, r), step.line)
			assert.Equal(t, map[string]string{"198.18.100.0/24": step.v4, "198.18.110.1": step.v4, "2001:db8:110::1": step.v6}, ours(t, node), step.line)
			assert.Equal(t, step.v4, r.Stats().IPv4.Source.String())
		}
	})
}

// A Service CIDR that holds a network of the node must not become local as a whole.
func TestServiceCIDRThatContradicts(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		r := start(t, testConfig("198.18.0.0/16", "2001:db8::/32", "198.19.0.0/24"))
		want := state("198.18.110.1", "2001:db8:110::1", "198.19.0.1")
		require.NoError(t, r.Commit(t.Context(), want))
		assert.Equal(t, map[string]string{"198.18.110.1": "198.18.255.1", "2001:db8:110::1": "2001:db8:ff::1", "198.19.0.0/24": "198.18.255.1"}, ours(t, node))
		// A route that comes later.
		sh(t, node, "ip route add 198.19.0.128/25 via 198.18.255.2")
		assert.False(t, verify(t, r))
		require.NoError(t, r.Commit(t.Context(), want))
		assert.Contains(t, ours(t, node), "198.19.0.1")
		assert.NotContains(t, ours(t, node), "198.19.0.0/24")
		// One that only discards takes nothing away.
		sh(t, node, "ip route del 198.19.0.128/25; ip route add blackhole 198.19.0.0/24")
		require.NoError(t, r.Commit(t.Context(), want))
		assert.Contains(t, ours(t, node), "198.19.0.0/24")
		assert.NotContains(t, ours(t, node), "198.19.0.1")
	})
}

// A route of somebody else in the place of ours.
func TestRouteThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		sh(t, node, "ip route add 198.18.110.1 dev lo table local metric 1024")
		r := start(t, testConfig())
		err := r.Commit(t.Context(), state("198.18.110.1", "198.18.110.2"))
		var be *intercept.BindingError
		require.ErrorAs(t, err, &be)
		assert.Equal(t, "ns/198.18.110.1", be.Binding.Owner)
		assert.ErrorContains(t, err, "somebody else")
		assert.Contains(t, ours(t, node), "198.18.110.2")
		assert.Contains(t, sh(t, node, "ip route show table local 198.18.110.1"), "metric 1024", "theirs stays")
	})
}

func TestOwnDialsAreDropped(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		const mark = 0x2000
		for _, addr := range []string{"198.18.110.1", "2001:db8:110::1"} {
			b := tcp(addr, 80)
			r := start(t, testConfig())
			require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: []intercept.Binding{b}}))
			control := func(f func(fd int) error) func(_, _ string, raw syscall.RawConn) error {
				return func(_, _ string, raw syscall.RawConn) error {
					var err error
					return errors.Join(raw.Control(func(fd uintptr) { err = f(int(fd)) }), err)
				}
			}
			lc := net.ListenConfig{Control: control(func(fd int) error { return ListenControl(mark)(fd, b.Listen) })}
			l, err := lc.Listen(t.Context(), "tcp", b.Listen.String())
			require.NoError(t, err)
			defer l.Close()
			dial := func(mark int, patience time.Duration) error {
				d := net.Dialer{Timeout: patience, Control: control(func(fd int) error {
					return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark)
				})}
				c, err := d.Dial("tcp", b.Listen.String())
				if err == nil {
					c.Close()
				}
				return err
			}
			assert.NoError(t, dial(0, 30*time.Second))
			assert.NoError(t, dial(0x4000, 30*time.Second), "another mark means nothing")
			assert.ErrorContains(t, dial(mark, 200*time.Millisecond), "timeout")
			assert.ErrorContains(t, dial(mark|1, 200*time.Millisecond), "timeout")
		}
	})
}

func TestUnprivileged(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		_, err := newRoutes(testConfig(), forbidden{})
		require.Error(t, err)
		assert.ErrorContains(t, err, "CAP_NET_ADMIN")
		assert.ErrorContains(t, err, "--interception=none")
		assert.ErrorIs(t, err, unix.EPERM)
	})
}

type forbidden struct{ routing }

func (forbidden) try(bool) error { return unix.EPERM }

// A family that does not work is the misfortune of its own VIPs.
func TestOneFamily(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		k := &onlyIPv4{routing: kernel{}}
		r, err := newRoutes(testConfig(), k)
		require.NoError(t, err)
		want := state("198.18.110.1", "2001:db8:110::1")
		require.NoError(t, r.Prepare(t.Context(), []intercept.VIP{want.Bindings[0].VIP, want.Bindings[1].VIP}))
		err = r.Commit(t.Context(), want)
		var be *intercept.BindingError
		require.ErrorAs(t, err, &be)
		assert.Equal(t, "ns/2001:db8:110::1", be.Binding.Owner)
		assert.Len(t, ours(t, node), 1)
		assert.True(t, verify(t, r))
		assert.Error(t, r.Stats().IPv6.Err)

		k.both = true // somebody has turned it on
		require.NoError(t, r.Commit(t.Context(), want))
		assert.NoError(t, r.Stats().IPv6.Err)
		assert.Len(t, ours(t, node), 2)
		assert.True(t, verify(t, r))
	})
}

type onlyIPv4 struct {
	routing
	both bool
}

func (k *onlyIPv4) try(v6 bool) error {
	if v6 && !k.both {
		return unix.EOPNOTSUPP
	}
	return k.routing.try(v6)
}

// What the proxy cannot listen for is not made local at each attempt: its clients would come to whoever has the port.
func TestPreparedInVain(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		r := start(t, testConfig())
		one, both := state("198.18.110.1"), state("198.18.110.1", "198.18.110.2")
		vips := []intercept.VIP{both.Bindings[0].VIP, both.Bindings[1].VIP}
		require.NoError(t, r.Prepare(t.Context(), vips))
		require.NoError(t, r.Commit(t.Context(), one))
		for range 2 {
			before := r.Stats().IPv4.Added
			require.NoError(t, r.Prepare(t.Context(), vips))
			assert.NotContains(t, ours(t, node), "198.18.110.2")
			require.NoError(t, r.Commit(t.Context(), one))
			assert.Equal(t, before, r.Stats().IPv4.Added)
		}
		require.NoError(t, r.Prepare(t.Context(), vips))
		require.NoError(t, r.Commit(t.Context(), both))
		assert.Contains(t, ours(t, node), "198.18.110.2")
		// As new once nobody wants it any more.
		require.NoError(t, r.Prepare(t.Context(), vips[:1]))
		require.NoError(t, r.Commit(t.Context(), one))
		require.NoError(t, r.Prepare(t.Context(), vips))
		assert.Contains(t, ours(t, node), "198.18.110.2")
	})
}

func TestWatch(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		r := start(t, testConfig())
		ctx, cancel := context.WithCancel(t.Context())
		noticed, ended := make(chan struct{}, 1), make(chan error, 1)
		go func() {
			ended <- r.Watch(ctx, func() {
				select {
				case noticed <- struct{}{}:
				default:
				}
			})
		}()
		// From some moment on it listens.
		require.Eventually(t, func() bool {
			sh(t, node, "ip addr add 198.18.250.1/32 dev to-world; ip addr del 198.18.250.1/32 dev to-world")
			return len(noticed) > 0
		}, time.Minute, 10*time.Millisecond)
		cancel()
		require.NoError(t, <-ended)
	})
}

func TestNoticesOfLinkLocalAddresses(t *testing.T) {
	notice := func(scope byte) []byte {
		n := binary.NativeEndian.AppendUint32(nil, unix.SizeofNlMsghdr+unix.SizeofIfAddrmsg)
		n = binary.NativeEndian.AppendUint16(n, unix.RTM_NEWADDR)
		n = append(n, make([]byte, unix.SizeofNlMsghdr-6)...)
		return append(n, unix.AF_INET6, 64, 0, scope, 1, 0, 0, 0)
	}
	const link, global = unix.RT_SCOPE_LINK, unix.RT_SCOPE_UNIVERSE
	assert.False(t, concerns(notice(link)))
	assert.True(t, concerns(notice(global)))
	assert.True(t, concerns(slices.Concat(notice(link), notice(global))))
	assert.True(t, concerns(notice(link)[:20]), "what cannot be read may be anything")
}

func TestNothingIsReadWhileNothingChanges(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		counter := &counting{routing: kernel{}}
		r, err := newRoutes(testConfig(), counter)
		require.NoError(t, err)
		want := state("198.18.110.1", "2001:db8:110::1")
		require.NoError(t, r.Commit(t.Context(), want))
		sh(t, node, "ip link set to-world down; ip link set to-world up")
		// Until interfaces have settled the kernel may have more to tell.
		require.Eventually(t, func() bool {
			require.NoError(t, r.Commit(t.Context(), want))
			before := counter.reads
			require.True(t, verify(t, r))
			return counter.reads == before
		}, time.Minute, 100*time.Millisecond)
	})
}

type counting struct {
	routing
	reads int
}

func (k *counting) read(v6 bool) (table, error) {
	k.reads++
	return k.routing.read(v6)
}

// What was lost by an overflow counts as news.
func TestWatchNoticesWhatOverflowed(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		w, err := newWatch()
		require.NoError(t, err)
		require.NoError(t, unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1))
		sh(t, node, "for i in 1 2 3 4 5 6 7 8 9; do ip route add 198.18.$i.0/24 dev lo; done")
		assert.True(t, w.changed())
		assert.False(t, w.changed())
		require.NoError(t, w.close())
		assert.True(t, w.changed(), "what cannot be watched may have changed")
	})
}
