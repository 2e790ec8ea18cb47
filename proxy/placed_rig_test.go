package proxy

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redial/config"
	"redial/proxy/intercept"
)

// here is the node that is served; there is another one.
const here, there = "here", "there"

// placed is an endpoint on a node.
type placed struct {
	addr        netip.AddrPort
	node        string
	unready     bool
	terminating bool // and still serving, unless it is unready as well
	protocol    v1.Protocol
}

// place sets all endpoints of a Service's port "http", one slice each.
func (g *rig) place(service string, eps ...placed) { place(g.tracker, service, eps...) }

func place(tracker *config.Tracker, service string, eps ...placed) {
	defer tracker.Hold()()
	const most = 6
	for i := range most {
		name := fmt.Sprintf("%s-%d", service, i)
		if i >= len(eps) {
			tracker.DeleteSlice("default", name)
			continue
		}
		e := eps[i]
		port, number := "http", int32(e.addr.Port())
		ready, serving := !e.unready && !e.terminating, !e.unready
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: discoveryv1.AddressType(config.FamilyOf(e.addr.Addr())),
			Ports:       []discoveryv1.EndpointPort{{Name: &port, Port: &number, Protocol: &e.protocol}},
			Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{e.addr.Addr().String()}, NodeName: &e.node,
				Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &e.terminating},
			}},
		}
		tracker.SetSlice(slice)
	}
}

// backendAt is backend at any loopback address.
func backendAt(t *testing.T, name, address string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go serve(l, name)
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// serve answers until l is closed.
func serve(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for in := bufio.NewScanner(c); in.Scan(); {
				fmt.Fprintf(c, "%s %s\n", name, in.Text())
			}
		}()
	}
}

// local makes the policies Local: internal, external or both.
func local(internal, external bool) func(*v1.Service) {
	return func(s *v1.Service) {
		if internal {
			policy := v1.ServiceInternalTrafficPolicyLocal
			s.Spec.InternalTrafficPolicy = &policy
		}
		if external {
			s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
		}
	}
}

func exposed(nodePort int32) func(*v1.Service) {
	return func(s *v1.Service) {
		s.Spec.Type = v1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = nodePort
	}
}

// committed is the state that was asked for last.
func (r *recorder) committed() intercept.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.commits) == 0 {
		return intercept.State{}
	}
	return r.commits[len(r.commits)-1]
}

// inForce tells the bindings of the last Commit in words that do not depend on proxy ports: where each VIP leads, where
// for clients on the node, and who may come.
func (g *rig) inForce() []string {
	g.mu.Lock()
	pools := map[netip.AddrPort]string{}
	for key, f := range g.frontends {
		for _, addr := range f.addrs() {
			pools[addr] = string(key.pool)
		}
	}
	g.mu.Unlock()
	pool := func(a netip.AddrPort) string {
		if !a.IsValid() {
			return "drop"
		}
		return pools[a]
	}
	var out []string
	for _, b := range g.rec.committed().Bindings {
		s := fmt.Sprintf("%s %s", b.VIP, pool(b.Listen))
		if b.VIP.NodePort() && b.VIP.Addr.Is6() {
			s = "6" + s
		}
		if b.Local.IsValid() {
			s += " node:" + pool(b.Local)
		}
		if b.Sources != nil {
			s += fmt.Sprint(" ", b.Sources)
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

// settled waits until all that was handed over is taken and in force.
func (g *rig) settled() {
	g.t.Helper()
	marker := object("zz-marker", fmt.Sprintf("198.19.%d.%d", g.marks/200, g.marks%200+1))
	g.marks++
	g.tracker.SetService(marker)
	g.eventually(func() bool {
		return slices.ContainsFunc(g.rec.committed().Bindings, func(b intercept.Binding) bool {
			return b.VIP.Addr.String() == marker.Spec.ClusterIP
		}) && g.Health().PendingSince.IsZero()
	}, "everything to be in force")
}

// unmarked is inForce without the marker of settled.
func (g *rig) unmarked() []string {
	return slices.DeleteFunc(g.inForce(), func(s string) bool { return strings.HasPrefix(s, "198.19.") })
}

// reached tells which backends answer at an address, or "refused".
func reached(to netip.AddrPort) []string {
	var names []string
	for range 4 {
		line, err := ask(to.String())
		if err != nil {
			line = "refused"
		}
		names = append(names, strings.TrimSuffix(line, " hello"))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (g *rig) frontendOf(service string, pool config.Pool, family config.Family) (FrontendStatus, bool) {
	for _, s := range g.Status().Services {
		for _, p := range s.Ports {
			for _, f := range p.Fronts {
				if s.Name == service && f.Pool == pool && f.Family == family {
					return f, true
				}
			}
		}
	}
	return FrontendStatus{}, false
}

func (g *rig) listenOf(service string, pool config.Pool) netip.AddrPort {
	g.t.Helper()
	f, ok := g.frontendOf(service, pool, config.IPv4)
	require.True(g.t, ok)
	return netip.MustParseAddrPort(f.address())
}

func addrPortOn(address string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(address), port)
}
