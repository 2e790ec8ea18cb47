package main

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
)

// numbered are backends of many Services on one host: each has a port of its own and says which.
type numbered struct {
	host *lab.Host
	n    int
}

const firstNumbered = 20000

func startNumbered(t *testing.T, node *lab.Host, n int) *numbered {
	t.Helper()
	host := addHost(t, node, "numbered", 1)
	for i := range n {
		var l net.Listener
		require.NoError(t, host.Do(func() (err error) { l, err = net.Listen("tcp", fmt.Sprint(":", firstNumbered+i)); return err }))
		t.Cleanup(func() { l.Close() })
		b := &backend{t: t, name: nthName(i), host: host}
		go b.acceptLoop(l)
	}
	return &numbered{host, n}
}

func nthName(i int) string { return fmt.Sprintf("web-%d", i) }
func nth4(i int) string    { return fmt.Sprintf("198.19.%d.%d", i/250, i%250+1) }
func nth6(i int) string    { return fmt.Sprintf("2001:db8:ffff::%x", i+1) }

// nth is a Service with backends of both families, and a NodePort.
func nth(i int) string {
	ports := fmt.Sprintf("[{name: http, port: %d}]", firstNumbered+i)
	return manifests(
		service(nthName(i), fmt.Sprintf(`{type: NodePort, clusterIP: %s, clusterIPs: [%q, %q], ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv4, IPv6], `+
			`ports: [{name: http, port: 80, targetPort: 80, nodePort: %d}]}`, nth4(i), nth4(i), nth6(i), 30000+i)),
		endpoints(nthName(i), ports, ip4(1)), endpoints(nthName(i), ports, ip6(1)))
}

func nths(n int) string {
	var all []string
	for i := range n {
		all = append(all, nth(i))
	}
	return manifests(all...)
}

// Many more Services than proxy ports: each address leads to its own Service's backend.
func TestServicesShareProxyPorts(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		const services = 300
		startNumbered(t, node, services)
		client := addHost(t, node, "client", 2)
		r := startRedial(t, nths(services), "--proxy-port-range=61000+19")
		s := r.awaitServed(nthName(0), nthName(services-1))
		require.Len(t, s.Services, services)
		own, shared := map[uint16]bool{}, 0
		for _, svc := range s.Services {
			require.Empty(t, svc.Problems, svc.Name)
			for _, f := range svc.Ports[0].Fronts {
				if f.Shared {
					shared++
				} else {
					own[f.ProxyPort] = true
				}
			}
		}
		assert.Equal(t, 2*services-2*len(own), shared)
		assert.Greater(t, len(own), 10, "as many as can have a port of their own")
		for i := range services {
			assertAnswers(t, client, net.JoinHostPort(nth4(i), "80"), nthName(i))
			assertAnswers(t, client, net.JoinHostPort(nth6(i), "80"), nthName(i))
			if i%10 > 0 {
				continue
			}
			assertAnswers(t, node, net.JoinHostPort(nth4(i), "80"), nthName(i))
			assertAnswers(t, node, net.JoinHostPort(nth6(i), "80"), nthName(i))
			assertAnswers(t, client, net.JoinHostPort("198.18.2.1", fmt.Sprint(30000+i)), nthName(i))
			assertAnswers(t, client, net.JoinHostPort("2001:db8:2::1", fmt.Sprint(30000+i)), nthName(i))
			assertAnswers(t, node, net.JoinHostPort("127.0.0.1", fmt.Sprint(30000+i)), nthName(i))
		}
		out := statusOf(t, r)
		assertLine(t, fmt.Sprintf(`%d frontends share 2 proxy ports, .*; 0 connections were reset there as nobody's`, shared), out)
		assert.Regexp(t, `\d+ shared +served`, out)
	})
}

// A restart with other Services than before changes who has which port. While the rules of the process before lead clients to
// the ports that it had, none of them gets to see another Service's backend.
func TestRestartWithOtherPorts(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		const services = 60
		startNumbered(t, node, services)
		client := addHost(t, node, "client", 2)
		var late, early []string
		for i := range services {
			if i%4 == 0 {
				late = append(late, nth(i))
			} else {
				early = append(early, nth(i))
			}
		}
		r := startRedial(t, manifests(early...), "--proxy-port-range=61000+19")
		before := r.awaitServed(nthName(1))
		r.write("more.yaml", manifests(late...))
		r.awaitServed(nthName(0))
		ports := func(s *status) map[string]uint16 {
			of := map[string]uint16{}
			for _, svc := range s.Services {
				of[svc.Name] = s.front(svc.Name).ProxyPort
			}
			return of
		}

		var running sync.WaitGroup
		var asked atomic.Int64
		end := make(chan struct{})
		for w := range 4 {
			running.Go(func() {
				for i := w; ; i = (i + 4) % services {
					select {
					case <-end:
						return
					default:
					}
					// For a moment there is nobody, or not the right one.
					if name, err := ask(client, net.JoinHostPort(nth4(i), "80")); err == nil {
						assert.Equal(t, nthName(i), name)
						asked.Add(1)
					}
				}
			})
		}
		for range 3 {
			r.kill()
			r = r.restart()
			r.awaitServed(nthName(0), nthName(services-1))
			goal := asked.Load() + 100
			require.True(t, eventually(func() bool { return asked.Load() > goal }))
		}
		close(end)
		running.Wait()
		moved, now := 0, ports(r.status())
		for name, port := range ports(before) {
			if now[name] != port {
				moved++
			}
		}
		assert.Positive(t, moved, "or this has tested nothing")
	})
}

// More Service ports than the default flags have proxy ports.
func TestMoreServicePortsThanProxyPorts(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		const services, each = 60, 80
		startNumbered(t, node, services)
		var all []string
		for i := range services {
			var ports, targets []string
			for j := range each {
				ports = append(ports, fmt.Sprintf("{name: p%d, port: %d}", j, 1000+j))
				targets = append(targets, fmt.Sprintf("{name: p%d, port: %d}", j, firstNumbered+(i+j)%services))
			}
			all = append(all, service(nthName(i), fmt.Sprintf("{clusterIP: %s, ports: [%s]}", nth4(i), strings.Join(ports, ", "))),
				endpoints(nthName(i), "["+strings.Join(targets, ", ")+"]", ip4(1)))
		}
		r := startRedial(t, manifests(all...))
		awaitAnswer(t, node, net.JoinHostPort(nth4(services-1), fmt.Sprint(1000+each-1)), nthName((services+each-2)%services))
		s, shared := r.awaitServed(nthName(0)), 0 // after that, as it takes long
		for _, svc := range s.Services {
			require.Empty(t, svc.Problems)
			for _, p := range svc.Ports {
				if p.Fronts[0].Shared {
					shared++
				}
			}
		}
		assert.Greater(t, shared, 200)
		for k := 0; k < services*each; k += 23 {
			i, j := k/each, k%each
			assertAnswers(t, node, net.JoinHostPort(nth4(i), fmt.Sprint(1000+j)), nthName((i+j)%services))
		}
	})
}
