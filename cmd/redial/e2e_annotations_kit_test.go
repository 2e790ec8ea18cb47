package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"redial/proxy"
	"redial/proxy/intercept/lab"
)

// annotated is a Service, in a file of its own, whose annotations a test changes while it is served.
type annotated struct {
	*instance
	name, clusterIP string
	slices          string // the documents of its endpoints
	ports           string
}

// annotations are "idle-timeout=300ms", as the status lists them. A name with a slash is written as it is, others get the
// prefix.
type annotations []string

func (a annotations) String() string {
	var list []string
	for _, one := range a {
		name, value, _ := strings.Cut(one, "=")
		if !strings.Contains(name, "/") {
			name = "redial/" + name
		}
		list = append(list, fmt.Sprintf("%s: %q", name, value))
	}
	return strings.Join(list, ", ")
}

// add makes a Service with a TCP port 80, endpoints at port 8080 and annotations, and waits until it is served so.
func (r *instance) add(name, clusterIP string, asked annotations, backends ...string) *annotated {
	r.t.Helper()
	a := &annotated{instance: r, name: name, clusterIP: clusterIP, ports: "{port: 80}", slices: endpoints(name, "[{port: 8080}]", backends...)}
	a.annotate(asked...)
	r.awaitServed(name)
	return a
}

func (a *annotated) vip() string { return a.clusterIP + ":80" }

// annotate replaces the annotations, and waits until they are in force: those of them that are right.
func (a *annotated) annotate(asked ...string) {
	a.t.Helper()
	a.writeAnnotated(asked)
	a.await(a.name+" has its annotations", func(s *status) bool {
		p, ok := s.firstPort(a.name)
		return ok && slices.Equal(p.Asked, asked)
	})
}

func (a *annotated) writeAnnotated(asked annotations) {
	a.t.Helper()
	a.write(a.name+".yaml", manifests(
		fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: default, annotations: {%s}}\nspec: {clusterIP: %s, ports: [%s]}\n",
			a.name, asked, a.clusterIP, a.ports), a.slices))
}

// endpointsAre replaces the endpoints. The annotations stay as they are given.
func (a *annotated) endpointsAre(asked annotations, backends ...string) {
	a.t.Helper()
	a.slices = endpoints(a.name, "[{port: 8080}]", backends...)
	a.writeAnnotated(asked)
	a.await(a.name+" has its endpoints", func(s *status) bool {
		return slices.EqualFunc(s.front(a.name).Backends, backends, func(b proxy.BackendStatus, ip string) bool { return b.Address == ip+":8080" })
	})
}

func (a *annotated) stats() proxy.FrontendStatus { return a.status().front(a.name) }

// awaitStats waits for a fact about the only frontend.
func (a *annotated) awaitStats(what string, fulfilled func(proxy.FrontendStatus) bool) proxy.FrontendStatus {
	a.t.Helper()
	return a.await(a.name+": "+what, func(s *status) bool { return fulfilled(s.front(a.name)) }).front(a.name)
}

// awaitQuiet waits until no connection is live: what was closed has been noticed.
func (a *annotated) awaitQuiet() {
	a.t.Helper()
	a.awaitStats("quiet", func(f proxy.FrontendStatus) bool { return f.Stats.Active == 0 })
}

// firstPort is the first port of a Service.
func (s *status) firstPort(service string) (proxy.PortStatus, bool) {
	if svc := s.service(service); svc != nil && len(svc.Ports) > 0 {
		return svc.Ports[0], true
	}
	return proxy.PortStatus{}, false
}

// turns makes n connections one after the other, each over before the next, and counts who answered.
func (a *annotated) turns(n int, from *lab.Host) map[string]int {
	a.t.Helper()
	answers := map[string]int{}
	for range n {
		name, err := ask(from, a.vip())
		require.NoError(a.t, err, a.name)
		answers[name]++
		a.awaitQuiet()
	}
	return answers
}

// hold makes n connections that stay, one after the other, and returns them by who answered.
func (a *annotated) hold(n int, from *lab.Host) map[string][]*call {
	a.t.Helper()
	held := map[string][]*call{}
	for range n {
		c := mustDial(a.t, from, a.vip())
		held[c.backend] = append(held[c.backend], c)
	}
	return held
}

// assertEndsSoon expects the proxy to end a connection in this way that has hardly begun, on a busy machine perhaps before
// the backend has said its name.
func assertEndsSoon(t *testing.T, from *lab.Host, address string) {
	t.Helper()
	c, err := connect(from, address)
	require.NoError(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(testPatience))
	_, err = io.Copy(io.Discard, c)
	require.NoError(t, err)
}

// assertEnds expects the proxy to end a connection, in the way of a server.
func assertEnds(t *testing.T, c *call) {
	t.Helper()
	c.SetDeadline(time.Now().Add(testPatience))
	_, err := c.lines.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	c.Close()
}

// assertReset expects a connection to be let in and reset.
func assertReset(t *testing.T, from *lab.Host, address string) {
	t.Helper()
	c, err := connect(from, address)
	if err == nil {
		c.SetDeadline(time.Now().Add(testPatience))
		_, err = c.lines.ReadByte()
		c.Close()
	}
	require.True(t, errors.Is(err, syscall.ECONNRESET), "%s: %v", address, err)
}

// dialFrom is dial with a source address.
func dialFrom(t *testing.T, from *lab.Host, source, address string) string {
	t.Helper()
	var conn net.Conn
	require.NoError(t, from.Do(func() (err error) {
		d := net.Dialer{Timeout: clientPatience, LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
		conn, err = d.Dial("tcp", address)
		return err
	}))
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(clientPatience))
	line, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(line)
}

// listening lists the process's listening TCP sockets by port and inode.
func (r *instance) listening() (sockets []string) {
	r.t.Helper()
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", r.cmd.Process.Pid))
	require.NoError(r.t, err)
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" {
			sockets = append(sockets, f[1]+" "+f[9])
		}
	}
	slices.Sort(sockets)
	return sockets
}

func deadlineIn(d time.Duration) time.Time { return time.Now().Add(d) }
