package proxy

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"redial/config"
	"redial/iptables"
	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
	"redial/proxy/relay"
)

// steered is real rules, and remembers what they were asked for.
type steered struct {
	*iptables.Rules
	rec *recorder
}

func (s steered) Commit(ctx context.Context, want intercept.State) error {
	err := s.Rules.Commit(ctx, want)
	s.rec.remember(want)
	return err
}

// steer makes Services work on the node, with these proxy ports.
func steer(t *testing.T, node *lab.Host, ports intercept.PortRange) *rig {
	t.Helper()
	out, err := node.Output("ip", "addr", "add", "198.19.255.254/15", "dev", "lo")
	require.NoError(t, err, out)
	rec := &recorder{t: t}
	g := start(t, ports, func(cfg *Config) {
		rules, err := iptables.New(iptables.Config{ProxyPorts: ports, Mark: 0x2000, Log: cfg.Log})
		require.NoError(t, err)
		cfg.Interceptor = steered{rules, rec}
		cfg.Relay = relay.New(relay.Config{Mark: 0x2000})
		cfg.Tracker = delivered()
	})
	return g.follow(rec)
}

func nthVIP(i int) string { return fmt.Sprintf("198.18.%d.%d", 100+i/200, i%200+1) }

// More Services than ports: those of TCP share, each with its own backends; those of UDP that have no port say so. What
// happens to one of those that share does not concern the others.
func TestManyServicesFewPorts(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		const count = 200
		g := steer(t, node, intercept.PortRange{First: 62000, Last: 62007})
		vip := func(i int) string { return net.JoinHostPort(nthVIP(i), "80") }
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
		answers := func(i int) bool {
			line, err := ask(vip(i))
			return err == nil && line == name(i)+" hello"
		}
		g.eventually(func() bool { return answers(count-1) && g.problem(name(count-1), ReasonListenFailed) != "" }, "the last one to be served")
		shared, datagrams, problems := 0, 0, 0
		for _, s := range g.Status().Services {
			for _, p := range s.Ports {
				for _, f := range p.Fronts {
					switch {
					case p.Protocol == config.UDP:
						datagrams++
						require.False(t, f.Shared)
					case f.Shared:
						shared++
					}
				}
			}
			for _, p := range s.Problems {
				assert.Equal(t, "dns", p.Port)
				if p.Reason != ReasonListenFailed {
					continue // that it has no endpoints
				}
				problems++
				assert.Contains(t, p.Message, "widen --proxy-port-range")
			}
		}
		assert.Equal(t, count-5, shared, "all but what is left of 8 ports: one is shared, one for the node's pool, one refuses")
		assert.Equal(t, 8, datagrams)
		assert.Equal(t, count-8, problems)
		require.Len(t, g.Status().Shared, 1)
		assert.Equal(t, shared, g.Status().Shared[0].Frontends)
		assert.Equal(t, shared, g.Summary(false).Shared)
		for i := range count {
			require.True(t, answers(i), name(i))
		}

		live, err := net.Dial("tcp", vip(150))
		require.NoError(t, err)
		defer live.Close()
		_, err = askOn(live)
		require.NoError(t, err)
		for range 3 {
			g.endpoints(name(150), "http")
			g.eventually(func() bool { return refuses(vip(150)) }, "clients to be refused")
			require.True(t, answers(151), "the others are not")
			_, err = askOn(live)
			require.NoError(t, err, "connections go on")
			g.endpoints(name(150), "http", backends[150])
			g.eventually(func() bool { return answers(150) }, "the backend to be back")
		}

		g.tracker.DeleteService(config.ServiceName{Namespace: "default", Name: name(151)})
		g.eventually(func() bool { return !answers(151) }, "it to be gone")
		require.True(t, answers(152))

		g.tracker.SetService(object("zz-heir", nthVIP(153)))
		g.endpoints("zz-heir", "http", backend(t, "heir"))
		g.eventually(func() bool { return g.problem("zz-heir", ReasonAddressConflict) != "" }, "the conflict to be seen")
		require.True(t, answers(153), "it stays with who has it")
		g.tracker.DeleteService(config.ServiceName{Namespace: "default", Name: name(153)})
		g.eventually(func() bool { line, err := ask(vip(153)); return err == nil && line == "heir hello" }, "the heir to have it")
		assert.Zero(t, g.cfg.Relay.Totals().TCP.Failed)
	})
}

// Where clients are refused by a rule, one is written when the last usable backend goes and when the first comes, and at no
// other change of endpoints.
func TestRefusalsOfThoseThatShare(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		g := steer(t, node, intercept.PortRange{First: 62000, Last: 62007})
		for i := range 6 { // take the ports
			g.tracker.SetService(object(fmt.Sprint("a-", i), nthVIP(i)))
		}
		g.settled()
		g.tracker.SetService(object("web", nthVIP(100)))
		web := net.JoinHostPort(nthVIP(100), "80")
		one, two := backend(t, "one"), backend(t, "two")
		reaches := func(name string) func() bool {
			return func() bool { line, err := ask(web); return err == nil && line == name+" hello" }
		}
		g.eventually(func() bool { return refuses(web) }, "clients to be refused")
		for range 3 {
			g.endpoints("web", "http", one)
			g.eventually(reaches("one"), "the first backend")
			require.True(t, g.served("web", "http").Shared)
			g.eventually(func() bool { return g.Health().PendingSince.IsZero() }, "the rule to be recorded")
			before := g.rec.count()
			g.endpoints("web", "http", two)
			g.eventually(reaches("two"), "the other backend")
			assert.Equal(t, before, g.rec.count(), "no rule is written")
			g.endpoints("web", "http")
			g.eventually(func() bool { return refuses(web) }, "clients to be refused")
			g.eventually(func() bool { return g.rec.count() > before }, "a rule to be written") // until then the listener resets them
		}
	})
}

// A VIP whose clients are split is with two frontends, which share in different places.
func TestPoliciesOfThoseThatShare(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		client, err := node.AddHost("client", "198.18.1.2/24")
		require.NoError(t, err)
		g := steer(t, node, intercept.PortRange{First: 62000, Last: 62007})
		for i := range 6 { // take the ports
			g.tracker.SetService(object(fmt.Sprint("a-", i), nthVIP(i)))
		}
		g.settled()
		g.tracker.SetService(object("web", nthVIP(100), exposed(30080), local(false, true)))
		mine := placed{addr: backend(t, "mine"), node: here}
		theirs := placed{addr: backendAt(t, "theirs", "127.0.0.2"), node: there}
		g.place("web", mine, theirs)
		g.settled()
		for _, pool := range []config.Pool{config.ClusterPool, config.LocalPool} {
			f, ok := g.frontendOf("web", pool, config.IPv4)
			require.True(t, ok)
			require.True(t, f.Shared)
		}
		outside := func() (names []string) {
			require.NoError(t, client.Do(func() error { names = reached(addrPortOn("198.18.1.1", 30080)); return nil }))
			return names
		}
		assert.Equal(t, []string{"mine", "theirs"}, reached(addrPortOn("127.0.0.1", 30080)))
		assert.Equal(t, []string{"mine"}, outside())

		g.place("web", theirs)
		g.settled()
		i := slices.IndexFunc(g.rec.committed().Bindings, func(b intercept.Binding) bool { return b.VIP.NodePort() })
		assert.False(t, g.rec.committed().Bindings[i].Listen.IsValid(), "clients from elsewhere are dropped")
		assert.Equal(t, []string{"theirs"}, reached(addrPortOn("127.0.0.1", 30080)))

		g.place("web")
		g.settled()
		assert.Equal(t, []string{"refused"}, outside())
		assert.True(t, refuses("127.0.0.1:30080"))

		g.place("web", mine)
		g.settled()
		assert.Equal(t, []string{"mine"}, outside())
		assert.Equal(t, []string{"mine"}, reached(addrPortOn("127.0.0.1", 30080)))
	})
}

// unsteered has clients come by nothing, and frontends share all the same.
type unsteered struct{ intercept.None }

func (unsteered) Limits(bool) intercept.Limits { return intercept.Limits{} }

// still is a Proxier that does not run: syncs happen when the test has them.
func still(t *testing.T, ports intercept.PortRange, fds int) *Proxier {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	r := relay.New(relay.Config{MaxFDs: fds})
	t.Cleanup(func() { r.Shutdown(t.Context()) })
	return New(Config{Interceptor: unsteered{}, Relay: r, Ports: ports, Log: logrus.NewEntry(log)})
}

// want has the Services of these numbers wanted; odd ones of both protocols.
func (p *Proxier) want(numbers ...int) {
	before := maps.Clone(p.wanted)
	for _, i := range numbers {
		s := &config.Service{Name: config.ServiceName{Namespace: "default", Name: fmt.Sprint(i)}}
		for _, protocol := range []config.Protocol{config.TCP, config.UDP}[:1+i%2] {
			s.Ports = append(s.Ports, config.ServicePort{
				Name: config.ServicePortName{Service: s.Name, Port: string(protocol), Protocol: protocol},
				Port: 80, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{198, 18, byte(i / 256), byte(i)})},
			})
		}
		p.takeService(s.Name, s)
		delete(before, s.Name)
	}
	for name := range before {
		p.takeService(name, nil)
	}
}

func (p *Proxier) mustReconcile(t *testing.T) (full bool) {
	t.Helper()
	full, err := p.reconcile(t.Context())
	require.NoError(t, err)
	return full
}

// whereabouts is where a frontend is.
type whereabouts struct {
	port   uint16
	shared bool
}

func (p *Proxier) places() map[frontendKey]whereabouts {
	out := map[frontendKey]whereabouts{}
	for key, f := range p.frontends {
		out[key] = whereabouts{f.port, f.shared != nil}
	}
	return out
}

// Whatever comes and goes: ports are not given twice, nobody shares as long as there is a port, and who is somewhere stays
// there. What shared listeners know is what there is. Two processes that find the same Services give them the same ports.
func TestWhoShares(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, _ *lab.Host) {
		ports := intercept.PortRange{First: 62000, Last: 62019}
		for seed := range uint64(20) {
			random := rand.New(rand.NewPCG(seed, 1))
			p := still(t, ports, 1<<20)
			own := ports.Size() - p.sharing.ports()
			wanted := map[int]bool{}
			for range 30 {
				for range random.IntN(12) {
					i := random.IntN(40)
					if wanted[i] = random.IntN(5) > 1; !wanted[i] {
						delete(wanted, i)
					}
				}
				before := p.places()
				p.want(slices.Collect(maps.Keys(wanted))...)
				p.mustReconcile(t)
				checkPlaces(t, p, before, own)
			}
			var again [2]map[frontendKey]whereabouts
			p.cfg.Relay.Shutdown(t.Context())
			for i := range again {
				p := still(t, ports, 1<<20)
				p.want(slices.Collect(maps.Keys(wanted))...)
				p.mustReconcile(t)
				again[i] = p.places()
				p.cfg.Relay.Shutdown(t.Context())
			}
			require.Equal(t, again[0], again[1], "seed %d", seed)
		}
	})
}

func checkPlaces(t *testing.T, p *Proxier, before map[frontendKey]whereabouts, most int) {
	t.Helper()
	now := p.places()
	taken := map[portKey]bool{}
	alone, routed := 0, map[netip.AddrPort]*relay.Listener{}
	fresh := false // somebody new shares
	for key, at := range now {
		if old, ok := before[key]; ok {
			require.Equal(t, old, at, "it moved")
		}
		pk := p.ports.key(key, at.port)
		switch {
		case at.shared:
			require.Equal(t, config.TCP, key.name.Protocol)
			require.Greater(t, at.port, p.ports.ports.First+uint16(most)-1)
			_, old := before[key]
			fresh = fresh || !old
			for _, l := range p.frontends[key].listeners {
				routed[netip.AddrPortFrom(p.wanted[key.name.Service].Ports[0].ClusterIPs[0], 80)] = l.listener.(*relay.Listener)
			}
		default:
			require.False(t, taken[pk], "given twice")
			taken[pk] = true
			if key.name.Protocol == config.TCP {
				require.Less(t, at.port, p.ports.ports.First+uint16(most))
				alone++
			}
		}
	}
	for key, at := range before { // what goes is closed last
		if _, stays := now[key]; !stays && !at.shared && key.name.Protocol == config.TCP {
			alone++
		}
	}
	if fresh {
		require.Equal(t, most, alone, "somebody shares though a port is left")
	}
	for _, s := range p.wanted {
		_, served := now[frontendKey{s.Ports[0].Name, config.ClusterPool, config.IPv4}]
		require.True(t, served, s.Name)
	}
	known := map[netip.AddrPort]*relay.Listener{}
	for _, listeners := range p.sharing.open {
		for _, s := range listeners {
			maps.Copy(known, s.routes)
		}
	}
	require.Equal(t, len(routed), len(known))
	for to, l := range routed {
		require.Same(t, l, known[to])
	}
}

// Frontends of TCP share, too, before listeners have all the descriptors that they may have: UDP needs some.
func TestDescriptorsAreLeftForUDP(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, _ *lab.Host) {
		p := still(t, testPorts, 160)
		listeners := func() int { return p.cfg.Relay.Usage().Listeners }
		most := p.cfg.Relay.Usage().MaxListeners
		var even []int
		for i := range most + 10 {
			even = append(even, 2*i)
		}
		p.want(even...)
		p.mustReconcile(t)
		require.Empty(t, p.problems)
		assert.Equal(t, most-most/4, listeners())
		p.want(append(even, 1, 3, 5)...)
		p.mustReconcile(t)
		require.Empty(t, p.problems)
		assert.Equal(t, most-most/4+3, listeners(), "of UDP each has its own, and the TCP ports beside them share")
	})
}

// Where a connection does not tell what its client has dialled, nobody shares.
func TestNobodySharesWithoutDestinations(t *testing.T) {
	cfg := Config{Interceptor: intercept.None{}, Ports: testPorts, Relay: relay.New(relay.Config{})}
	without := newSharing(&cfg)
	assert.Zero(t, without.most)
	assert.Zero(t, without.ports(), "and no port is kept for it")
	cfg.Interceptor = unsteered{}
	assert.Positive(t, newSharing(&cfg).most)
	cfg.Ports = intercept.PortRange{First: 62000, Last: 62006}
	assert.Zero(t, newSharing(&cfg).most, "of so few ports")
}
