package relay_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/balancer"
	"redial/proxy/intercept/lab"
	"redial/proxy/relay"
)

// sharing is a Relay with a shared listener of each family on a node, rules that lead VIPs to it, and Listeners that each have
// a backend of their own.
type sharing struct {
	t          *testing.T
	node       *lab.Host
	relay      *relay.Relay
	four, six  *relay.SharedListener
	balancers  map[*relay.Listener]*balancer.Balancer
	redirected map[netip.AddrPort]bool
}

const sharedPort = 61000

// sharedPatience bounds every wait. Only a failing test waits so long.
const sharedPatience = 20 * time.Second

func share(t *testing.T, node *lab.Host, cfg relay.Config) *sharing {
	t.Helper()
	s := &sharing{t: t, node: node, relay: relay.New(cfg), balancers: map[*relay.Listener]*balancer.Balancer{}, redirected: map[netip.AddrPort]bool{}}
	var err error
	s.four, err = s.relay.ListenShared(netip.MustParseAddrPort("0.0.0.0:61000"))
	require.NoError(t, err)
	s.six, err = s.relay.ListenShared(netip.MustParseAddrPort("[::]:61000"))
	require.NoError(t, err)
	s.four.Serve()
	s.six.Serve()
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		s.relay.Shutdown(ended)
		for l, b := range s.balancers {
			stats := l.Stats()
			assert.Zero(t, stats.Active)
			assert.Equal(t, stats.Accepted, stats.Connected+stats.Failed+stats.NoBackend+stats.Abandoned+stats.Limited, "%+v", stats)
			for _, backend := range b.Backends() {
				assert.Zero(t, backend.Active)
			}
		}
	})
	return s
}

// redirect leads what is for a VIP to the shared port, from the node itself.
func (s *sharing) redirect(to netip.AddrPort, target ...string) {
	s.t.Helper()
	if target == nil {
		target = []string{"-j", "REDIRECT", "--to-ports", fmt.Sprint(sharedPort)}
	}
	program := "iptables"
	if to.Addr().Is6() {
		program = "ip6tables"
	}
	args := []string{"-w", "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "--dport", fmt.Sprint(to.Port())}
	if !to.Addr().IsUnspecified() {
		args = append(args, "-d", to.Addr().String())
	}
	out, err := s.node.Output(program, append(args, target...)...)
	require.NoError(s.t, err, out)
}

// listen makes a Listener with a backend that says name.
func (s *sharing) listen(on *relay.SharedListener, name string) *relay.Listener {
	s.t.Helper()
	b := balancer.New(nil)
	b.Update(balancer.Config{Backends: []balancer.Backend{{Addr: sayer(s.t, name), Weight: 1}}})
	l, err := on.Listen(name, b)
	require.NoError(s.t, err)
	s.balancers[l] = b
	l.Serve()
	return l
}

// sayer is a backend that says its name, and then what it is told.
func sayer(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := fmt.Fprintln(c, name); err == nil {
					io.Copy(c, c)
				}
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// call connects and returns who has answered.
func call(to netip.AddrPort) (net.Conn, string, error) {
	c, err := net.DialTimeout("tcp", to.String(), sharedPatience)
	if err != nil {
		return nil, "", err
	}
	c.SetDeadline(time.Now().Add(sharedPatience))
	line, err := bufio.NewReader(io.LimitReader(c, 64)).ReadString('\n')
	if err != nil {
		c.Close()
		return nil, "", err
	}
	return c, strings.TrimSpace(line), nil
}

func (s *sharing) answers(to netip.AddrPort, name string) {
	s.t.Helper()
	c, got, err := call(to)
	require.NoError(s.t, err, "%s", to)
	c.Close()
	require.Equal(s.t, name, got, "%s", to)
}

func (s *sharing) resets(to netip.AddrPort) {
	s.t.Helper()
	_, name, err := call(to)
	require.ErrorIs(s.t, err, syscall.ECONNRESET, "%s: %s", to, name)
}

func at(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func routes(l *relay.Listener, to ...string) map[netip.AddrPort]*relay.Listener {
	m := map[netip.AddrPort]*relay.Listener{}
	for _, a := range to {
		m[at(a)] = l
	}
	return m
}

func onSharedNode(t *testing.T, cfg relay.Config, body func(t *testing.T, s *sharing)) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		// Any address is the node's: what is dialled needs a route, and the answers a source.
		for _, args := range [][]string{
			{"addr", "add", "198.18.0.1/15", "dev", "lo"},
			{"-6", "addr", "add", "2001:db8::1/64", "dev", "lo", "nodad"},
		} {
			out, err := node.Output("ip", args...)
			require.NoError(t, err, out)
		}
		body(t, share(t, node, cfg))
	})
}

// Each destination has its Listener, whatever kind of rule leads to the socket; an exact one comes before one for all
// addresses. What others have accepted does not count.
func TestSharedByDestination(t *testing.T) {
	onSharedNode(t, relay.Config{}, func(t *testing.T, s *sharing) {
		a, b := s.listen(s.four, "a"), s.listen(s.four, "b")
		s.four.Route(routes(a, "198.18.1.1:80", "198.18.1.1:81"))
		s.four.Route(routes(b, "198.18.1.2:80", "0.0.0.0:30080"))
		c := s.listen(s.six, "c")
		s.six.Route(routes(c, "[2001:db8::80]:80", "[::]:30080"))
		s.redirect(at("198.18.1.1:80"))
		s.redirect(at("198.18.1.1:81"), "-j", "DNAT", "--to-destination", "198.18.0.1:61000")
		s.redirect(at("198.18.1.2:80"))
		s.redirect(at("0.0.0.0:30080"))
		s.redirect(at("[2001:db8::80]:80"))
		s.redirect(at("[::]:30080"), "-j", "DNAT", "--to-destination", "[2001:db8::1]:61000")
		s.answers(at("198.18.1.1:80"), "a")
		s.answers(at("198.18.1.1:81"), "a")
		s.answers(at("198.18.1.2:80"), "b")
		s.answers(at("198.18.0.1:30080"), "b")
		s.answers(at("127.0.0.1:30080"), "b")
		s.answers(at("[2001:db8::80]:80"), "c")
		s.answers(at("[2001:db8::1]:30080"), "c")
		s.answers(at("[::1]:30080"), "c")

		s.four.Route(routes(a, "198.18.0.1:30080"))
		s.answers(at("198.18.0.1:30080"), "a")
		s.answers(at("127.0.0.1:30080"), "b")
		assert.EqualValues(t, 3, a.Stats().Accepted)
		assert.EqualValues(t, 4, b.Stats().Accepted)
		assert.EqualValues(t, 3, c.Stats().Connected)
		assert.Zero(t, s.four.Stats().Strays)
		assert.EqualValues(t, 10, s.relay.Totals().TCP.Accepted)
		assert.Zero(t, s.relay.Usage().Listeners, "none has a socket of its own")
	})
}

// What comes directly, untracked or for what is nobody's, is reset, counted, and nobody's connection.
func TestSharedStrays(t *testing.T) {
	onSharedNode(t, relay.Config{}, func(t *testing.T, s *sharing) {
		a := s.listen(s.four, "a")
		s.four.Route(routes(a, "198.18.1.1:80"))
		s.resets(at("198.18.0.1:61000")) // without rules, nothing is tracked
		s.redirect(at("198.18.1.1:80"))
		s.redirect(at("198.18.1.2:80"))
		s.answers(at("198.18.1.1:80"), "a")
		s.resets(at("198.18.0.1:61000"))
		s.resets(at("198.18.1.2:80"))
		s.four.Route(map[netip.AddrPort]*relay.Listener{at("198.18.1.1:80"): nil})
		s.resets(at("198.18.1.1:80"))
		assert.EqualValues(t, 4, s.four.Stats().Strays)
		assert.EqualValues(t, 1, a.Stats().Accepted)
		before := s.relay.Totals().TCP
		assert.EqualValues(t, 4, before.Strays)
		require.NoError(t, s.four.Close())
		assert.Equal(t, before, s.relay.Totals().TCP, "what is closed has been")
	})
}

// One that closes takes no clients any more, though they may still be led to it. Connections go on, and so do the others.
func TestSharedCloses(t *testing.T) {
	onSharedNode(t, relay.Config{}, func(t *testing.T, s *sharing) {
		a, b := s.listen(s.four, "a"), s.listen(s.four, "b")
		s.four.Route(routes(a, "198.18.1.1:80"))
		s.four.Route(routes(b, "198.18.1.2:80"))
		s.redirect(at("198.18.1.1:80"))
		s.redirect(at("198.18.1.2:80"))
		live, _, err := call(at("198.18.1.1:80"))
		require.NoError(t, err)
		defer live.Close()
		require.NoError(t, a.Close())
		require.NoError(t, a.Close(), "twice")
		s.resets(at("198.18.1.1:80"))
		s.answers(at("198.18.1.2:80"), "b")
		fmt.Fprintln(live, "still there")
		line, err := bufio.NewReader(live).ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, "still there\n", line)

		s.four.Route(routes(b, "198.18.1.1:80"))
		s.answers(at("198.18.1.1:80"), "b")
		require.NoError(t, b.SetOpen(false), "has no effect on the others' socket")
		s.answers(at("198.18.1.1:80"), "b")
	})
}

// At the limit of descriptors, who waits for them is turned away when the Listener it is for closes; those behind it have
// their turn.
func TestSharedClosesWhileOneWaits(t *testing.T) {
	onSharedNode(t, relay.Config{MaxFDs: 10}, func(t *testing.T, s *sharing) { // 8 for TCP: two sockets, and two connections
		a, b := s.listen(s.four, "a"), s.listen(s.four, "b")
		s.four.Route(routes(a, "198.18.1.1:80"))
		s.four.Route(routes(b, "198.18.1.2:80"))
		s.redirect(at("198.18.1.1:80"))
		s.redirect(at("198.18.1.2:80"))
		var live []net.Conn
		for range 2 {
			c, _, err := call(at("198.18.1.2:80"))
			require.NoError(t, err)
			defer c.Close()
			live = append(live, c)
		}
		waiting, err := net.Dial("tcp", "198.18.1.1:80")
		require.NoError(t, err)
		defer waiting.Close()
		require.Eventually(t, func() bool { return a.Stats().FDWaits == 1 }, sharedPatience, time.Millisecond)
		behind, err := net.Dial("tcp", "198.18.1.2:80")
		require.NoError(t, err)
		defer behind.Close()
		require.NoError(t, a.Close())
		waiting.SetDeadline(time.Now().Add(sharedPatience))
		_, err = waiting.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		assert.EqualValues(t, 1, a.Stats().Failed)
		require.Eventually(t, func() bool { return b.Stats().FDWaits == 1 }, sharedPatience, time.Millisecond, "the next one waits")
		live[0].Close()
		behind.SetDeadline(time.Now().Add(sharedPatience))
		_, err = behind.Read(make([]byte, 1))
		require.NoError(t, err)
	})
}

// One whose clients stay until it has its share of all that there may be does not keep those of others waiting: its own are
// reset.
func TestSharedFlood(t *testing.T) {
	onSharedNode(t, relay.Config{MaxFDs: 256}, func(t *testing.T, s *sharing) { // 192 for TCP: fewer than 96 connections
		a, b := s.listen(s.four, "a"), s.listen(s.four, "b")
		s.four.Route(routes(a, "198.18.1.1:80"))
		s.four.Route(routes(b, "198.18.1.2:80"))
		s.redirect(at("198.18.1.1:80"))
		s.redirect(at("198.18.1.2:80"))
		var live []net.Conn
		reset := 0
		for range 150 {
			c, _, err := call(at("198.18.1.1:80"))
			if err != nil {
				require.ErrorIs(t, err, syscall.ECONNRESET)
				reset++
				continue
			}
			defer c.Close()
			live = append(live, c)
		}
		assert.Greater(t, len(live), 70)
		assert.EqualValues(t, reset, a.Stats().Limited)
		for range 3 {
			s.answers(at("198.18.1.2:80"), "b")
		}
		live[0].Close()
		require.Eventually(t, func() bool {
			c, _, err := call(at("198.18.1.1:80"))
			if err == nil {
				c.Close()
			}
			return err == nil
		}, sharedPatience, time.Millisecond, "room again")
		assert.Zero(t, a.Stats().FDWaits+b.Stats().FDWaits)
	})
}

// The end of the Relay is that of all.
func TestSharedShutdown(t *testing.T) {
	onSharedNode(t, relay.Config{}, func(t *testing.T, s *sharing) {
		a := s.listen(s.four, "a")
		s.four.Route(routes(a, "198.18.1.1:80"))
		s.redirect(at("198.18.1.1:80"))
		live, _, err := call(at("198.18.1.1:80"))
		require.NoError(t, err)
		defer live.Close()
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		assert.Equal(t, 1, s.relay.Shutdown(ended))
		_, _, err = call(at("198.18.1.1:80"))
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		_, err = s.four.Listen("late", balancer.New(nil))
		assert.ErrorIs(t, err, relay.ErrShutdown)
		_, err = s.relay.ListenShared(at("0.0.0.0:61001"))
		assert.ErrorIs(t, err, relay.ErrShutdown)
	})
}

// Listeners come and go, and destinations move between them, while clients connect: nobody gets to see another's backend.
func TestSharedChurn(t *testing.T) {
	onSharedNode(t, relay.Config{}, func(t *testing.T, s *sharing) {
		const vips = 8
		vip := func(i int) string { return fmt.Sprintf("198.18.1.%d:80", i+1) }
		var current [vips]*relay.Listener
		for i := range vips {
			s.redirect(at(vip(i)))
		}
		var running sync.WaitGroup
		end := make(chan struct{})
		var mu sync.Mutex
		answered := 0
		for w := range 4 {
			running.Go(func() {
				random := rand.New(rand.NewPCG(1, uint64(w)))
				for {
					select {
					case <-end:
						return
					default:
					}
					i := random.IntN(vips)
					c, name, err := call(at(vip(i)))
					if err != nil {
						assert.ErrorIs(t, err, syscall.ECONNRESET)
						continue
					}
					c.Close()
					assert.Equal(t, fmt.Sprint("vip-", i), name)
					mu.Lock()
					answered++
					mu.Unlock()
				}
			})
		}
		enough := func() bool { mu.Lock(); defer mu.Unlock(); return answered > 500 }
		random := rand.New(rand.NewPCG(2, 3))
		for turn := 0; turn < 200 || !enough(); turn++ {
			i := random.IntN(vips)
			old := current[i]
			if old != nil && random.IntN(3) == 0 {
				require.NoError(t, old.Close())
				current[i] = nil
				continue
			}
			current[i] = s.listen(s.four, fmt.Sprint("vip-", i))
			s.four.Route(routes(current[i], vip(i)))
			if old != nil {
				require.NoError(t, old.Close())
			}
		}
		close(end)
		running.Wait()
	})
}

// A Listener with a socket of its own that is confined takes what is for it only, until it is not confined any more.
func TestConfined(t *testing.T) {
	onSharedNode(t, relay.Config{}, func(t *testing.T, s *sharing) {
		b := balancer.New(nil)
		b.Update(balancer.Config{Backends: []balancer.Backend{{Addr: sayer(t, "own"), Weight: 1}}})
		l, err := s.relay.Listen(at("0.0.0.0:61001"), "own", b)
		require.NoError(t, err)
		s.balancers[l] = b
		l.Confine([]netip.AddrPort{at("198.18.1.1:80"), at("0.0.0.0:30080")})
		l.Serve()
		for _, vip := range []string{"198.18.1.1:80", "198.18.1.2:80", "0.0.0.0:30080"} {
			s.redirect(at(vip), "-j", "REDIRECT", "--to-ports", "61001")
		}
		s.answers(at("198.18.1.1:80"), "own")
		s.answers(at("127.0.0.1:30080"), "own")
		s.resets(at("198.18.1.2:80"))
		s.resets(at("198.18.0.1:61001"))
		l.Confine([]netip.AddrPort{at("198.18.1.2:80")})
		s.answers(at("198.18.1.2:80"), "own")
		s.resets(at("198.18.1.1:80"))
		assert.EqualValues(t, 3, l.Stats().Accepted)
		assert.EqualValues(t, 3, l.Stats().Strays)
		l.Confine(nil)
		require.Eventually(t, func() bool {
			c, _, err := call(at("198.18.1.1:80"))
			if err == nil {
				c.Close()
			}
			return err == nil
		}, sharedPatience, time.Millisecond)
		s.answers(at("198.18.0.1:61001"), "own")
	})
}
