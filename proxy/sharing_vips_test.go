package proxy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"redial/config"
	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
	routes "redial/proxy/intercept/local"
	"redial/proxy/relay"
)

// routed is real routes, and remembers what they were asked for.
type routed struct {
	*routes.Routes
	rec *recorder
}

func (r routed) Commit(ctx context.Context, want intercept.State) error {
	err := r.Routes.Commit(ctx, want)
	r.rec.remember(want)
	return err
}

// unshareable cannot have VIPs share.
type unshareable struct{ routed }

func (unshareable) Shares(bool) error { return fmt.Errorf("the kernel is too old") }

// listenOnVIPs makes Services work on the node by listening on their addresses, with so few descriptors that there can be most
// listeners.
func listenOnVIPs(t *testing.T, most int, change ...func(*Config)) *rig {
	t.Helper()
	ports := intercept.PortRange{First: 62000, Last: 62099}
	rec := &recorder{t: t}
	g := start(t, ports, append([]func(*Config){func(cfg *Config) {
		r, err := routes.New(routes.Config{
			ServiceCIDRs: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("198.18.100.0/24")} }, Log: cfg.Log,
		})
		require.NoError(t, err)
		t.Cleanup(func() { r.Close() })
		if err := r.Shares(false); err != nil {
			t.Skip("VIPs cannot share listeners here: " + err.Error())
		}
		cfg.Interceptor = routed{r, rec}
		fds := 100
		for relay.New(relay.Config{MaxFDs: fds}).Usage().MaxListeners < most {
			fds++
		}
		cfg.Relay = relay.New(relay.Config{MaxFDs: fds, Mark: 0x2000, ListenControl: routes.ListenControl(0x2000)})
		cfg.Tracker = delivered()
	}}, change...)...)
	return g.follow(rec)
}

// fill has listeners opened until the next frontend of TCP has to share.
func (g *rig) fill() {
	g.t.Helper()
	for i := range 100 {
		if u := g.cfg.Relay.Usage(); u.Listeners >= u.MaxListeners-u.MaxListeners/4 {
			return
		}
		g.tracker.SetService(object(fmt.Sprint("a-", i), nthVIP(100+i)))
		g.settled()
	}
}

func expose(addrs ...string) func(*v1.Service) {
	return func(s *v1.Service) { s.Spec.ExternalIPs = addrs }
}

func leadsTo(address, name string) func() bool {
	return func() bool { line, err := ask(address + ":80"); return err == nil && line == name+" hello" }
}

func refusesAt(address string) func() bool {
	return func() bool { return refuses(address + ":80") }
}

// More Services than descriptors: those of TCP share, those of UDP beyond the limit say so.
func TestManyServicesFewDescriptors(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		const count, most = 100, 24
		g := listenOnVIPs(t, most)
		name := func(i int) string { return fmt.Sprintf("web-%03d", i) }
		backends := make([]netip.AddrPort, count)
		release := g.tracker.Hold()
		for i := range count {
			g.tracker.SetService(object(name(i), nthVIP(i), func(s *v1.Service) {
				s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "dns", Port: 53, Protocol: v1.ProtocolUDP})
			}))
			backends[i] = backend(t, name(i))
			g.endpoints(name(i), "http", backends[i])
		}
		release()
		g.eventually(leadsTo(nthVIP(count-1), name(count-1)), "the last one to be served")
		g.eventually(func() bool { return g.problem(name(count-1), ReasonListenFailed) != "" }, "its UDP port to have a problem")
		assert.Contains(t, g.problem(name(count-1), ReasonListenFailed), "file descriptors")
		shared := 0
		for _, s := range g.Status().Services {
			for _, p := range s.Ports {
				for _, f := range p.Fronts {
					if f.Shared {
						shared++
						assert.Equal(t, config.TCP, p.Protocol)
						assert.NotZero(t, f.ProxyPort)
					}
				}
			}
			for _, p := range s.Problems {
				assert.Equal(t, "dns", p.Port)
			}
		}
		assert.Greater(t, shared, count-most)
		told := 0
		for _, s := range g.Status().Shared {
			told += s.Frontends
		}
		assert.Equal(t, shared, told)
		for i := range count {
			require.True(t, leadsTo(nthVIP(i), name(i))(), name(i))
		}

		live, err := net.Dial("tcp", nthVIP(50)+":80")
		require.NoError(t, err)
		defer live.Close()
		_, err = askOn(live)
		require.NoError(t, err)
		for range 3 {
			g.endpoints(name(50), "http")
			g.eventually(refusesAt(nthVIP(50)), "clients to be refused")
			require.True(t, leadsTo(nthVIP(51), name(51))(), "the others are not")
			_, err = askOn(live)
			require.NoError(t, err, "connections go on")
			g.endpoints(name(50), "http", backends[50])
			g.eventually(leadsTo(nthVIP(50), name(50)), "the backend to be back")
		}
		g.tracker.DeleteService(config.ServiceName{Namespace: "default", Name: name(50)})
		g.eventually(refusesAt(nthVIP(50)), "it to be gone")
		_, err = askOn(live)
		require.NoError(t, err, "connections go on")
		g.tracker.SetService(object(name(50), nthVIP(50)))
		g.eventually(leadsTo(nthVIP(50), name(50)), "it to be back")
		require.True(t, leadsTo(nthVIP(51), name(51))())
		assert.Zero(t, g.cfg.Relay.Totals().TCP.Failed)
	})
}

// Another process that listens on the Service's port at all addresses does not get the clients of those that share, nor when
// they have no endpoint. NodePorts need listeners of their own, which that process may be in the way of.
func TestForeignListenersBesideThoseThatShare(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		g := listenOnVIPs(t, 24)
		g.fill()
		for _, address := range []string{"0.0.0.0:8080", "0.0.0.0:30081"} {
			l, err := net.Listen("tcp4", address)
			require.NoError(t, err)
			defer l.Close()
			go serve(l, "foreign")
		}
		at8080 := func(s *v1.Service) { s.Spec.Ports[0].Port = 8080 }
		one, two := addrPortOn(nthVIP(1), 8080), addrPortOn(nthVIP(2), 8080)
		g.tracker.SetService(object("one", nthVIP(1), at8080, exposed(30080)))
		g.tracker.SetService(object("two", nthVIP(2), at8080, exposed(30081)))
		a, b := backend(t, "a"), backend(t, "b")
		for range 2 {
			g.endpoints("one", "http", a)
			g.endpoints("two", "http", b)
			g.settled()
			require.True(t, g.served("one", "http").Shared)
			assert.Equal(t, []string{"a"}, reached(one))
			assert.Equal(t, []string{"a"}, reached(addrPortOn("127.0.0.1", 30080)))
			assert.Equal(t, []string{"b"}, reached(two))
			assert.Equal(t, []string{"foreign"}, reached(addrPortOn("127.0.0.1", 30081)))
			assert.Equal(t, []string{"foreign"}, reached(addrPortOn("127.0.0.1", 8080)))
			assert.Contains(t, g.problem("two", ReasonListenFailed), "another process has the port")
			assert.Empty(t, g.problem("one", ReasonListenFailed))
			before := g.served("two", "http").Stats.Accepted
			g.settled()
			assert.GreaterOrEqual(t, g.served("two", "http").Stats.Accepted, before, "it is not opened anew again and again")

			g.endpoints("one", "http")
			g.endpoints("two", "http")
			g.settled()
			assert.Equal(t, []string{"refused"}, reached(one))
			assert.Equal(t, []string{"refused"}, reached(addrPortOn("127.0.0.1", 30080)))
			assert.Equal(t, []string{"refused"}, reached(two))
			assert.Equal(t, []string{"foreign"}, reached(addrPortOn("127.0.0.1", 8080)))
		}
	})
}

// Between a listener of its own and a shared one, and between Services, a VIP has the one or the other at each moment.
func TestVIPsMoveToAndFromSharedListeners(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		g := listenOnVIPs(t, 24)
		const vip = "198.18.100.90"
		services := []string{"alone", "zz-shares", "zz-shares-too"}
		claim := func(owner string) {
			release := g.tracker.Hold()
			defer release()
			for i, s := range services {
				if s == owner {
					g.tracker.SetService(object(s, nthVIP(i), expose(vip)))
				} else {
					g.tracker.SetService(object(s, nthVIP(i)))
				}
			}
		}
		g.tracker.SetService(object("alone", nthVIP(0)))
		for _, s := range services {
			g.endpoints(s, "http", backend(t, s))
		}
		g.settled()
		g.fill()
		claim("alone")
		g.settled()
		for i, s := range services {
			require.Equal(t, i > 0, g.served(s, "http").Shared)
		}
		var asked atomic.Int64
		var running sync.WaitGroup
		end := make(chan struct{})
		running.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				line, err := ask(vip + ":80")
				if err == nil {
					assert.Contains(t, services, strings.TrimSuffix(line, " hello"))
				} else { // a reset, of what was in the queue of a listener that was closed
					assert.NotErrorIs(t, err, syscall.ECONNREFUSED)
				}
				asked.Add(1)
			}
		})
		for _, owner := range []string{"zz-shares", "zz-shares-too", "zz-shares", "zz-shares-too"} {
			claim(owner)
			g.eventually(leadsTo(vip, owner), "the VIP to be "+owner+"'s")
			goal := asked.Load() + 20
			g.eventually(func() bool { return asked.Load() > goal }, "clients to come")
		}
		close(end)
		running.Wait()
		claim("alone")
		g.eventually(leadsTo(vip, "alone"), "the VIP to be back")
		assert.False(t, g.served("alone", "http").Shared)
	})
}

// A frontend that has listeners of its own keeps them, and shares for what comes when there may be no more.
func TestNewVIPsShareWhenDescriptorsAreUsedUp(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		g := listenOnVIPs(t, 24)
		g.tracker.SetService(object("web", nthVIP(0)))
		g.endpoints("web", "http", backend(t, "a"))
		g.settled()
		for i := range 40 { // UDP takes the rest
			g.tracker.SetService(object(fmt.Sprint("u-", i), nthVIP(100+i), func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolUDP }))
		}
		g.eventually(func() bool { u := g.cfg.Relay.Usage(); return u.Listeners == u.MaxListeners }, "no listener to be left")
		extra := []string{"198.18.100.91", "198.18.100.92"}
		g.tracker.SetService(object("web", nthVIP(0), expose(extra...), exposed(30080)))
		for _, vip := range append(extra, nthVIP(0)) {
			g.eventually(leadsTo(vip, "a"), vip)
		}
		g.eventually(func() bool { return g.problem("web", ReasonListenFailed) != "" }, "the NodePort to have a problem")
		assert.True(t, refuses("127.0.0.1:30080"))
		f := g.served("web", "http")
		assert.Len(t, f.Listen, 2, "its own, and the shared one")
		g.mu.Lock()
		for _, f := range g.frontends {
			if f.shared != nil {
				assert.Len(t, f.shared.routes, len(extra), "its own VIP does not come that way")
			}
		}
		g.mu.Unlock()
		g.tracker.SetService(object("web", nthVIP(0), expose(extra[1])))
		g.eventually(refusesAt(extra[0]), "it to be gone")
		for _, vip := range []string{extra[1], nthVIP(0)} {
			assert.True(t, leadsTo(vip, "a")(), vip)
		}
		assert.Empty(t, g.problem("web", ReasonListenFailed))
	})
}

// What a policy Local would drop, this way of interception refuses, whoever else listens there.
func TestPoliciesOfVIPsThatShare(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		g := listenOnVIPs(t, 24)
		g.fill()
		foreign, err := net.Listen("tcp4", "0.0.0.0:8080")
		require.NoError(t, err)
		defer foreign.Close()
		go serve(foreign, "foreign")
		g.tracker.SetService(object("web", nthVIP(0), local(true, false), func(s *v1.Service) { s.Spec.Ports[0].Port = 8080 }))
		mine := placed{addr: backend(t, "mine"), node: here}
		theirs := placed{addr: backendAt(t, "theirs", "127.0.0.2"), node: there}
		vip := addrPortOn(nthVIP(0), 8080)
		for range 2 {
			g.place("web", mine, theirs)
			g.eventually(func() bool { return slices.Equal(reached(vip), []string{"mine"}) }, "this node's")
			g.place("web", theirs)
			g.eventually(func() bool { return refuses(vip.String()) }, "clients to be refused by the kernel")
			g.place("web")
			g.settled()
			assert.True(t, refuses(vip.String()))
		}
	})
}

// Where the kernel cannot do it, the Services beyond the limit say what they would take.
func TestSharingIsNotPossible(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		g := listenOnVIPs(t, 24, func(cfg *Config) { cfg.Interceptor = unshareable{cfg.Interceptor.(routed)} })
		for i := range 40 {
			g.tracker.SetService(object(fmt.Sprint("web-", i), nthVIP(i)))
			g.endpoints(fmt.Sprint("web-", i), "http", backend(t, "a"))
		}
		served, refused := 0, 0
		g.eventually(func() bool {
			served, refused = 0, 0
			for i := range 40 {
				if leadsTo(nthVIP(i), "a")() {
					served++
				} else if m := g.problem(fmt.Sprint("web-", i), ReasonListenFailed); m != "" {
					assert.Contains(t, m, "raise it (ulimit -n); sharing listeners is not possible: the kernel is too old")
					refused++
				}
			}
			return served+refused == 40
		}, "all to be served, or to say why not")
		assert.Equal(t, 24, served)
		assert.Empty(t, g.Status().Shared)
	})
}

// Whatever comes and goes, nobody gets to another Service's backend, and in the end those that have a backend are served, and
// the others refuse.
func TestRandomVIPsThatShare(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		const count = 40
		g := listenOnVIPs(t, 24)
		name := func(i int) string { return fmt.Sprintf("web-%03d", i) }
		backends := make([]netip.AddrPort, count)
		for i := range backends {
			backends[i] = backend(t, name(i))
		}
		var running sync.WaitGroup
		end := make(chan struct{})
		for w := range 2 {
			running.Go(func() {
				for i := w; ; i = (i + 1) % count {
					select {
					case <-end:
						return
					default:
					}
					if line, err := ask(nthVIP(i) + ":80"); err == nil {
						assert.Equal(t, name(i)+" hello", line)
					}
				}
			})
		}
		random := rand.New(rand.NewPCG(7, 1))
		wanted, usable := [count]bool{}, [count]bool{}
		for range 15 {
			for range 20 {
				i := random.IntN(count)
				switch random.IntN(4) {
				case 0:
					g.tracker.DeleteService(config.ServiceName{Namespace: "default", Name: name(i)})
					wanted[i] = false
				case 1:
					g.place(name(i))
					usable[i] = false
				case 2:
					g.place(name(i), placed{addr: backends[i], node: here})
					usable[i] = true
				default:
					s := object(name(i), nthVIP(i))
					if random.IntN(3) == 0 {
						exposed(30000 + int32(i))(s)
					}
					g.tracker.SetService(s)
					wanted[i] = true
				}
			}
			g.settled()
			for i := range count {
				if wanted[i] && usable[i] {
					line, err := ask(nthVIP(i) + ":80")
					assert.NoError(t, err, name(i))
					assert.Equal(t, name(i)+" hello", line)
				} else {
					line, err := ask(nthVIP(i) + ":80")
					assert.ErrorIs(t, err, syscall.ECONNREFUSED, "%s %s", name(i), line)
				}
			}
			require.False(t, t.Failed())
		}
		assert.NotEmpty(t, g.Status().Shared)
		close(end)
		running.Wait()
	})
}
