package config

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUsableCondition(t *testing.T) {
	ready := func(a string) Endpoint { return Endpoint{Addr: netip.MustParseAddrPort(a), Ready: true, Serving: true} }
	leaving := func(a string) Endpoint {
		return Endpoint{Addr: netip.MustParseAddrPort(a), Serving: true, Terminating: true}
	}
	unready := func(a string) Endpoint { return Endpoint{Addr: netip.MustParseAddrPort(a), Serving: true} }
	dead := func(a string) Endpoint { return Endpoint{Addr: netip.MustParseAddrPort(a), Terminating: true} }
	for _, c := range []struct {
		name   string
		eps    []Endpoint
		v4, v6 []string
	}{
		{"none", nil, nil, nil},
		{"ready ones, sorted", []Endpoint{ready("10.0.0.2:80"), ready("10.0.0.1:81"), ready("10.0.0.1:80")},
			[]string{"10.0.0.1:80", "10.0.0.1:81", "10.0.0.2:80"}, nil},
		{"once each", []Endpoint{ready("10.0.0.1:80"), ready("10.0.0.1:80")}, []string{"10.0.0.1:80"}, nil},
		{"the terminating are not used beside ready ones", []Endpoint{ready("10.0.0.1:80"), leaving("10.0.0.2:80")}, []string{"10.0.0.1:80"}, nil},
		{"but alone", []Endpoint{leaving("10.0.0.2:80"), dead("10.0.0.3:80")}, []string{"10.0.0.2:80"}, nil},
		{"nor are the unready ever", []Endpoint{unready("10.0.0.1:80"), dead("10.0.0.2:80")}, nil, nil},
		{"each family falls back on its own", []Endpoint{ready("10.0.0.1:80"), leaving("[fd00::1]:80")}, []string{"10.0.0.1:80"}, []string{"[fd00::1]:80"}},
		{"mapped addresses are IPv4", []Endpoint{ready("[::ffff:10.0.0.1]:80")}, []string{"[::ffff:10.0.0.1]:80"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := slices.Clone(c.eps)
			require.Equal(t, addrPorts(c.v4...), Usable(c.eps, IPv4, ClusterPool, Node{}))
			require.Equal(t, addrPorts(c.v6...), Usable(c.eps, IPv6, ClusterPool, Node{}))
			require.Equal(t, before, c.eps, "the argument is shared")
		})
	}
}

// endpointsOf reads endpoints from lines like "10.0.0.1 ready node-a zone=a,b node=node-a"; the states are ready (serving
// too), unready (serving), leaving (serving and terminating), dead (terminating), readyleaving (all), readymute (ready only).
func endpointsOf(t *testing.T, text ...string) []Endpoint {
	var out []Endpoint
	for _, line := range text {
		words := strings.Fields(line)
		e := Endpoint{Addr: netip.AddrPortFrom(netip.MustParseAddr(words[0]), 80)}
		var place Place
		for _, w := range words[1:] {
			key, list, hint := strings.Cut(w, "=")
			switch {
			case hint && key == "zone":
				place.ForZones = NamesOf(strings.Split(list, ",")...)
			case hint && key == "node":
				place.ForNodes = NamesOf(strings.Split(list, ",")...)
			case strings.HasPrefix(w, "node-"):
				place.NodeName = w
			case w == "ready":
				e.Ready, e.Serving = true, true
			case w == "unready":
				e.Serving = true
			case w == "leaving":
				e.Serving, e.Terminating = true, true
			case w == "dead":
				e.Terminating = true
			case w == "readyleaving":
				e.Ready, e.Serving, e.Terminating = true, true, true
			case w == "readymute":
				e.Ready = true
			default:
				t.Fatalf("what is %q?", w)
			}
		}
		e.At = place.handle()
		out = append(out, e)
	}
	return out
}

// Which endpoints node-a in zone a uses.
func TestUsablePools(t *testing.T) {
	here := Node{Name: "node-a", Zone: "a"}
	for _, c := range []struct {
		name           string
		node           Node
		eps            []string
		cluster, local string // the last parts of the addresses
	}{
		{"local and remote", here, []string{"10.0.0.1 ready node-a", "10.0.0.2 ready node-b", "10.0.0.3 ready"}, "1 2 3", "1"},
		{"remote only", here, []string{"10.0.0.2 ready node-b"}, "2", ""},
		{"no node name is nobody's", Node{}, []string{"10.0.0.1 ready", "10.0.0.2 ready node-b"}, "1 2", ""},
		{"local leaving, remote ready", here, []string{"10.0.0.1 leaving node-a", "10.0.0.2 ready node-b"}, "2", "1"},
		{"local leaving beside local ready", here, []string{"10.0.0.1 leaving node-a", "10.0.0.2 ready node-a"}, "2", "2"},
		{"all leaving", here, []string{"10.0.0.1 leaving node-a", "10.0.0.2 leaving node-b"}, "1 2", "1"},
		{"remote leaving", here, []string{"10.0.0.2 leaving node-b"}, "2", ""},
		{"unready and dead", here, []string{"10.0.0.1 unready node-a", "10.0.0.2 dead node-a"}, "", ""},
		{"published though not ready", here, []string{"10.0.0.1 readyleaving node-a", "10.0.0.2 readymute node-a"}, "1 2", "1 2"},

		{"zone", here, []string{"10.0.0.1 ready zone=a", "10.0.0.2 ready zone=b", "10.0.0.3 ready zone=b,a"}, "1 3", ""},
		{"one without a zone hint", here, []string{"10.0.0.1 ready zone=a", "10.0.0.2 ready zone=b", "10.0.0.3 ready"}, "1 2 3", ""},
		{"no hint for this zone", here, []string{"10.0.0.1 ready zone=c", "10.0.0.2 ready zone=b"}, "1 2", ""},
		{"node without a zone", Node{Name: "node-a"}, []string{"10.0.0.1 ready zone=a", "10.0.0.2 ready zone=b"}, "1 2", ""},
		{"the zone's name is no prefix", here, []string{"10.0.0.1 ready zone=ab,b", "10.0.0.2 ready zone=b"}, "1 2", ""},
		{"an unready one's hints do not count", here, []string{"10.0.0.1 ready zone=b", "10.0.0.2 unready zone=a", "10.0.0.3 ready zone=b"}, "1 3", ""},
		{"nor does it spoil the others'", here, []string{"10.0.0.1 ready zone=a", "10.0.0.2 unready", "10.0.0.3 leaving", "10.0.0.4 ready zone=b"}, "1", ""},
		{"the leaving have no hints", here, []string{"10.0.0.1 leaving zone=a", "10.0.0.2 leaving zone=b"}, "1 2", ""},
		{"the zone's are leaving, others are ready", here, []string{"10.0.0.1 leaving zone=a", "10.0.0.2 ready zone=b"}, "2", ""},
		{"each family has its own hints", here, []string{"10.0.0.1 ready zone=a", "10.0.0.2 ready zone=b", "fd00::1 ready"}, "1", ""},

		{"node", here, []string{"10.0.0.1 ready node=node-a", "10.0.0.2 ready node=node-b"}, "1", ""},
		{"node before zone", here, []string{"10.0.0.1 ready node=node-a zone=b", "10.0.0.2 ready node=node-b zone=a"}, "1", ""},
		{"no hint for this node: zone", here, []string{"10.0.0.1 ready node=node-c zone=b", "10.0.0.2 ready node=node-b zone=a"}, "2", ""},
		{"one without a node hint: zone", here, []string{"10.0.0.1 ready node=node-a zone=b", "10.0.0.2 ready zone=a"}, "2", ""},
		{"neither", here, []string{"10.0.0.1 ready node=node-c zone=c", "10.0.0.2 ready node=node-b zone=b"}, "1 2", ""},
		{"each kind lacks one", here, []string{"10.0.0.1 ready node=node-a", "10.0.0.2 ready zone=a"}, "1 2", ""},
		{"node hints say nothing of locality", here, []string{"10.0.0.1 ready node-b node=node-a", "10.0.0.2 ready node-a node=node-b"}, "1", "2"},
		{"hints do not concern Local", here, []string{"10.0.0.1 ready node-a zone=b", "10.0.0.2 ready node-b zone=a"}, "2", "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			eps := endpointsOf(t, c.eps...)
			before := slices.Clone(eps)
			for pool, want := range map[Pool]string{ClusterPool: c.cluster, LocalPool: c.local} {
				var all []netip.AddrPort
				for _, n := range strings.Fields(want) {
					all = append(all, netip.MustParseAddrPort("10.0.0."+n+":80"))
				}
				require.Equal(t, all, Usable(eps, IPv4, pool, c.node), pool)
			}
			require.Equal(t, before, eps, "the argument is shared")
		})
	}
}

// kinds are all endpoints that Usable can tell apart, seen from node-a in zone a.
func kinds() []Endpoint {
	var out []Endpoint
	hints := func(mine, other string) []Names {
		return []Names{"", NamesOf(mine), NamesOf(other), NamesOf(mine, other)}
	}
	for conditions := range 8 {
		for _, node := range []string{"", "node-a", "node-b"} {
			for _, zones := range hints("a", "b") {
				for _, nodes := range hints("node-a", "node-b") {
					out = append(out, Endpoint{Ready: conditions&1 > 0, Serving: conditions&2 > 0, Terminating: conditions&4 > 0,
						At: Place{NodeName: node, ForZones: zones, ForNodes: nodes}.handle()})
				}
			}
		}
	}
	return out
}

// What must hold of every set of endpoints: all of one, and many of more.
func TestUsableProperties(t *testing.T) {
	all := kinds()
	address := func(i int, family Family) netip.AddrPort {
		a := netip.AddrFrom4([4]byte{198, 18, 0, byte(i)})
		if family == IPv6 {
			a = netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i))
		}
		return netip.AddrPortFrom(a, 80)
	}
	check := func(kinds ...Endpoint) {
		eps := slices.Clone(kinds)
		for i := range eps {
			eps[i].Addr = address(i, IPv4)
		}
		requireUsable(t, eps)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, a := range all {
		check(a)
		for range 40 {
			check(a, all[rnd.IntN(len(all))])
		}
	}
	for range 10_000 {
		eps := make([]Endpoint, 3+rnd.IntN(4))
		// Few hints are missing, so that those of all endpoints are often complete.
		for i := range eps {
			eps[i] = all[rnd.IntN(len(all))]
			if rnd.IntN(4) > 0 {
				place := eps[i].Place()
				place.ForZones = []Names{NamesOf("a"), NamesOf("b"), NamesOf("a", "b")}[rnd.IntN(3)]
				eps[i].At = place.handle()
			}
			eps[i].Addr = address(i, Families[rnd.IntN(2)])
		}
		requireUsable(t, eps)
	}
}

// requireUsable states for every endpoint when it is used, rather than how the choice is made.
func requireUsable(t *testing.T, eps []Endpoint) {
	any := func(f func(Endpoint) bool) bool { return slices.ContainsFunc(eps, f) }
	for _, family := range Families {
		in := func(e Endpoint) bool { return FamilyOf(e.Addr.Addr()) == family }
		ready := func(e Endpoint) bool { return in(e) && e.Ready }
		leaving := func(e Endpoint) bool { return in(e) && e.Serving && e.Terminating }
		local := func(e Endpoint) bool { return e.Place().NodeName == "node-a" }
		forMe := func(e Endpoint) bool { return e.Place().ForNodes.Has("node-a") }
		forZone := func(e Endpoint) bool { return e.Place().ForZones.Has("a") }
		byNode := any(func(e Endpoint) bool { return ready(e) && forMe(e) }) &&
			!any(func(e Endpoint) bool { return ready(e) && e.Place().ForNodes == "" })
		byZone := any(func(e Endpoint) bool { return ready(e) && forZone(e) }) &&
			!any(func(e Endpoint) bool { return ready(e) && e.Place().ForZones == "" })
		var cluster, here []netip.AddrPort
		for _, e := range eps {
			if ready(e) && (byNode && forMe(e) || !byNode && byZone && forZone(e) || !byNode && !byZone) ||
				leaving(e) && !any(ready) {
				cluster = append(cluster, e.Addr)
			}
			if local(e) && (ready(e) || leaving(e) && !any(func(o Endpoint) bool { return local(o) && ready(o) })) {
				here = append(here, e.Addr)
			}
		}
		slices.SortFunc(cluster, netip.AddrPort.Compare)
		slices.SortFunc(here, netip.AddrPort.Compare)
		node := Node{Name: "node-a", Zone: "a"}
		require.Equal(t, cluster, Usable(eps, family, ClusterPool, node), "%+v", eps)
		require.Equal(t, here, Usable(eps, family, LocalPool, node), "%+v", eps)
		require.Equal(t, any(ready) || any(leaving), len(cluster) > 0, "hints keep nobody from all endpoints: %+v", eps)
		require.Nil(t, Usable(eps, family, LocalPool, Node{Zone: "a"}), "nothing is local to nobody")
	}
}

// Existing clients may stay with every endpoint that serves, whatever keeps new ones away.
func TestServing(t *testing.T) {
	eps := endpointsOf(t, "10.0.0.6 readymute", "10.0.0.5 dead", "10.0.0.4 unready node-b zone=b", "10.0.0.3 leaving", "10.0.0.1 ready", "fd00::1 leaving")
	require.Equal(t, addrPorts("10.0.0.1:80", "10.0.0.3:80", "10.0.0.4:80"), Serving(eps, IPv4))
	require.Equal(t, addrPorts("[fd00::1]:80"), Serving(eps, IPv6))
	require.Nil(t, Serving(nil, IPv4))
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		in   []string
		want Names
	}{
		{nil, ""}, {[]string{""}, ""}, {[]string{"a"}, "a"}, {[]string{"b", "a", "", "b"}, "a,b"}, {[]string{"a,b"}, ""}, {[]string{"a,b", "c"}, "c"},
	} {
		before := slices.Clone(c.in)
		require.Equal(t, c.want, NamesOf(c.in...))
		require.Equal(t, before, c.in)
	}
	n := NamesOf("zone-a", "zone-b")
	for name, want := range map[string]bool{"zone-a": true, "zone-b": true, "zone": false, "zone-a,zone-b": false, "": false} {
		require.Equal(t, want, n.Has(name), name)
	}
	require.False(t, Names("").Has(""))
}
