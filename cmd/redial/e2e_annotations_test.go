package main

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/pires/go-proxyproto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/config"
	"redial/proxy"
	"redial/proxy/intercept/lab"
)

// Without annotations everything here lasts for an hour. So what ends does so for its annotation.
func startPatient(t *testing.T) *instance {
	return startRedial(t, "", "--dial-timeout=1h", "--dial-try-timeout=1h", "--udp-timeout=1h", "--half-close-timeout=1h")
}

func TestDiallingAnnotations(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "good", 1)
		addBackend(t, node, "silent", 2).silence()
		for n := 3; n <= 5; n++ {
			addBackend(t, node, fmt.Sprint("refusing", n), n).refuse()
		}
		client := addHost(t, node, "client", 9)
		r := startPatient(t)

		// First of all, so that it has been silent for longer than any delay but its own by the time it is looked at.
		alone := r.add("alone", "198.18.100.1", annotations{"scheduler=rr", "hedge=off"}, ip4(1), ip4(2))
		var waiting []*call
		for range 2 { // one turn is the silent one's
			c, err := connect(client, alone.vip())
			require.NoError(t, err)
			defer c.Close()
			waiting = append(waiting, c)
		}

		short := r.add("short", "198.18.100.2", annotations{"dial-timeout=300ms"}, ip4(2))
		assertReset(t, client, short.vip())
		assert.EqualValues(t, 1, short.stats().Stats.Failed)

		hedged := r.add("hedged", "198.18.100.3", annotations{"scheduler=rr", "hedge=400ms"}, ip4(1), ip4(2))
		for range 2 {
			assertAnswers(t, client, hedged.vip(), "good")
		}
		f := hedged.awaitStats("quiet", func(f proxy.FrontendStatus) bool { return f.Stats.Active == 0 })
		assert.Positive(t, f.Stats.Hedges)
		assert.Equal(t, f.Stats.Hedges, f.Stats.Retried)

		f = alone.stats()
		assert.Zero(t, f.Stats.Hedges+f.Stats.Retries, "off")
		assert.EqualValues(t, 1, f.Stats.Connected)
		assert.EqualValues(t, len(waiting), f.Stats.Active)

		few := r.add("few", "198.18.100.4", annotations{"max-retries=0"}, ip4(3), ip4(4), ip4(5))
		assertReset(t, client, few.vip())
		assert.Zero(t, few.stats().Stats.Retries)
		few.annotate("max-retries=1")
		assertReset(t, client, few.vip())
		assert.EqualValues(t, 1, few.stats().Stats.Retries)
		few.annotate()
		assertReset(t, client, few.vip())
		assert.EqualValues(t, 3, few.stats().Stats.Retries, "as many as there are backends")
		assert.EqualValues(t, 3, few.stats().Stats.Failed)
	})
}

// The backend sees who called, and at which of the Service's addresses.
func TestProxyProtocolAnnotation(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		pod := addHost(t, node, "pod", 1)
		client := addHost(t, node, "client", 9)
		var l net.Listener
		require.NoError(t, pod.Do(func() (err error) { l, err = net.Listen("tcp", ":8080"); return err }))
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					in := bufio.NewReader(conn)
					h, err := proxyproto.Read(in)
					if err != nil {
						fmt.Fprintf(conn, "no header: %v\n", err)
						return
					}
					line, _ := in.ReadString('\n')
					fmt.Fprintf(conn, "v%d %s %s %s", h.Version, h.SourceAddr, h.DestinationAddr, line)
				}()
			}
		}()
		r := startPatient(t)
		web := r.add("web", clusterIP1, annotations{"proxy-protocol=v1"}, ip4(1))
		six := &annotated{instance: r, name: "six", clusterIP: `"2001:db8:100::1"`, ports: "{port: 80}], externalIPs: [\"2001:db8:110::1\"", slices: endpoints("six", "[{port: 8080}]", ip6(1))}
		six.annotate("proxy-protocol=v2")
		r.await("six is steered", func(s *status) bool { return s.front("six").Serving && len(s.front("six").VIPs) == 2 })
		expect := func(version, address string) {
			t.Helper()
			c, err := connect(client, address)
			require.NoError(t, err)
			defer c.Close()
			require.NoError(t, c.SetDeadline(deadlineIn(clientPatience)))
			_, err = c.Write([]byte("hello\n"))
			require.NoError(t, err)
			line, err := c.lines.ReadString('\n')
			require.NoError(t, err)
			assert.Equal(t, strings.Join([]string{version, c.LocalAddr().String(), address, "hello\n"}, " "), line)
		}
		expect("v1", web.vip())
		expect("v2", "[2001:db8:100::1]:80")
		expect("v2", "[2001:db8:110::1]:80")
		web.annotate("proxy-protocol=v2")
		expect("v2", web.vip())
		six.annotate("proxy-protocol=v1")
		expect("v1", "[2001:db8:110::1]:80")
	})
}

func TestLifeAnnotations(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		addBackend(t, node, "b", 2)
		addUDPBackend(t, node, "u", 3)
		client := addHost(t, node, "client", 9)
		r := startPatient(t)

		plain := r.add("plain", "198.18.100.1", nil, ip4(1))
		untouched := mustDial(t, client, plain.vip())

		idle := r.add("idle", "198.18.100.2", annotations{"idle-timeout=300ms"}, ip4(1))
		assertEndsSoon(t, client, idle.vip())
		assert.EqualValues(t, 1, idle.awaitStats("ended", func(f proxy.FrontendStatus) bool { return f.Stats.Active == 0 }).Stats.Idle)

		old := r.add("old", "198.18.100.3", annotations{"max-connection-age=1s"}, ip4(1))
		assertEndsSoon(t, client, old.vip())
		assert.EqualValues(t, 1, old.awaitStats("ended", func(f proxy.FrontendStatus) bool { return f.Stats.Active == 0 }).Stats.Aged)

		for i, drain := range []string{"drain-timeout=0", "drain-timeout=300ms"} {
			asked := annotations{drain}
			a := r.add(fmt.Sprintf("drained%d", i), fmt.Sprintf("198.18.100.%d", 10+i), asked, ip4(1))
			c := mustDial(t, client, a.vip())
			a.endpointsAre(asked, ip4(2))
			assertEnds(t, c)
			assert.EqualValues(t, 1, a.awaitStats("ended", func(f proxy.FrontendStatus) bool { return f.Stats.Active == 0 }).Stats.Drained, drain)
			assertAnswers(t, client, a.vip(), "b")
		}
		left := r.add("left", "198.18.100.12", nil, ip4(1))
		c := mustDial(t, client, left.vip())
		left.endpointsAre(nil, ip4(2))
		assertAnswers(t, client, left.vip(), "b")
		require.NoError(t, c.echo("left alone"))
		left.annotate("drain-timeout=0")
		assertEnds(t, c) // it holds for those that have lost their endpoint before

		r.write("dns.yaml", resolver("dns", "198.18.100.20", ip4(3)))
		r.awaitServed("dns")
		flow := mustOpenFlow(t, client, "198.18.100.20:53")
		awaitBackend(t, "u", flow)
		require.EqualValues(t, 1, r.status().front("dns").Stats.Active)
		r.write("dns.yaml", strings.Replace(resolver("dns", "198.18.100.20", ip4(3)), "namespace: default}", `namespace: default, annotations: {redial/udp-timeout: "300ms"}}`, 1))
		f := r.await("the session to end", func(s *status) bool { return s.front("dns").Stats.Active == 0 }).front("dns")
		assert.EqualValues(t, 1, f.Stats.Expired)

		require.NoError(t, untouched.echo("no annotation, no end"))
	})
}

func TestLimitAnnotations(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		addBackend(t, node, "b", 2)
		addUDPBackend(t, node, "u", 3)
		client := addHost(t, node, "client", 9)
		r := startPatient(t)
		limit := func(name string) (used, waiting int) {
			if p, ok := r.status().firstPort(name); ok && p.Limit != nil {
				return p.Limit.Used, p.Limit.Waiting
			}
			return -1, -1
		}

		web := r.add("web", clusterIP1, annotations{"max-connections=1", "max-queue=0"}, ip4(1), ip4(2))
		first := mustDial(t, client, web.vip())
		assertReset(t, client, web.vip())
		assert.EqualValues(t, 1, web.stats().Stats.Limited)
		assertLine(t, `default/web +80/TCP .* at its limit of 1, 1 refused by a limit`, statusOf(t, r))

		// The limit is raised, and a queue made, while it is reached: nobody is touched.
		sockets, syncs := r.listening(), r.status().Sync.Syncs
		web.annotate("max-connections=1", "max-queue=1", "queue-timeout=1h0m0s")
		waiter, err := connect(client, web.vip())
		require.NoError(t, err)
		defer waiter.Close()
		web.awaitStats("one waits", func(proxy.FrontendStatus) bool { _, waiting := limit("web"); return waiting == 1 })
		assertReset(t, client, web.vip())
		assertLine(t, `.*, connections waiting: 1`, statusOf(t, r))
		assertLine(t, `default/web +80/TCP +rr +max-connections=1, .*, 1 connections count, 1 of at most 1 wait, each for 1h0m0s +accepted .*`, statusOf(t, r, "web"))
		require.NoError(t, first.Close())
		waiter.SetDeadline(deadlineIn(clientPatience))
		line, err := waiter.lines.ReadString('\n')
		require.NoError(t, err)
		assert.Contains(t, []string{"a\n", "b\n"}, line)
		web.annotate("max-connections=2")
		second := mustDial(t, client, web.vip())
		require.NoError(t, second.echo("both"))
		assert.Equal(t, sockets, r.listening())
		assert.Equal(t, syncs, r.status().Sync.Syncs)

		web.annotate("max-connections=2", "queue-timeout=300ms")
		assertReset(t, client, web.vip())
		f := web.stats()
		assert.EqualValues(t, 1, f.Stats.QueueTimeouts)
		assert.EqualValues(t, 3, f.Stats.Limited)
		web.annotate()
		assertAnswers(t, client, web.vip(), "a", "b")

		each := r.add("each", "198.18.100.2", annotations{"max-connections-per-backend=1", "max-queue=0"}, ip4(1), ip4(2))
		assert.Equal(t, map[string]int{"a": 1, "b": 1}, counts(each.hold(2, client)))
		assertReset(t, client, each.vip())
		f = each.stats()
		assert.EqualValues(t, 1, f.Stats.Limited)
		assert.Positive(t, f.Balancer.Full)

		r.write("dns.yaml", strings.Replace(resolver("dns", "198.18.100.20", ip4(3)), "namespace: default}", `namespace: default, annotations: {redial/max-connections: "1"}}`, 1))
		r.awaitServed("dns")
		flow := mustOpenFlow(t, client, "198.18.100.20:53")
		awaitBackend(t, "u", flow)
		other := mustOpenFlow(t, client, "198.18.100.20:53")
		_, err = other.Write([]byte("in vain"))
		require.NoError(t, err)
		r.await("the session refused", func(s *status) bool { return s.front("dns").Stats.Limited == 1 })
		awaitBackend(t, "u", flow)
	})
}

// Each wrong value is told by name and with what would be right, and the rest of the Service is served as without it.
func TestWrongAnnotations(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		client := addHost(t, node, "client", 9)
		r := startPatient(t)
		web := r.add("web", clusterIP1, nil, ip4(1))
		live := mustDial(t, client, web.vip())
		wrong := annotations{
			"scheduler=fastest", "weights=web-0", "dial-timeout=5", "hedge=no", "max-retries=-1", "proxy-protocol=3", "idle-timeout=-1s",
			"udp-timeout=0", "max-connection-age=1ms", "drain-timeout=off", "max-connections=many", "max-connections-per-backend=1.5", "max-queue=", "queue-timeout=0s",
		}
		web.writeAnnotated(append(wrong, "max-connectons=1"))
		s := r.await("all to be told", func(s *status) bool { return len(s.service("web").Problems) >= len(wrong)+2 })
		for _, w := range wrong {
			name, _, _ := strings.Cut(w, "=")
			found := false
			for _, p := range s.service("web").Problems {
				found = found || p.Reason == config.ReasonInvalidAnnotation && strings.Contains(p.Message, "annotation redial/"+name+" ")
			}
			assert.True(t, found, name)
		}
		assert.Contains(t, r.awaitProblem("web", config.ReasonUnknownAnnotation).Message, "did you mean redial/max-connections?")
		assert.Contains(t, r.awaitProblem("web", config.ReasonUnusedAnnotation).Message, "udp-timeout")
		p, _ := s.firstPort("web")
		assert.Empty(t, p.Asked)
		assert.Nil(t, p.Limit)
		assert.Equal(t, "rr", s.front("web").Scheduler)
		assert.NoError(t, live.echo("not touched"))
		assertAnswers(t, client, web.vip(), "a")
		assertLine(t, `default/web: InvalidAnnotation: annotation redial/hedge "no" is not a duration .*: the proxy's own delay is used`, statusOf(t, r, "web"))
		web.annotate()
		r.awaitNoProblem("web")
	})
}
