package config

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUsable(t *testing.T) {
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
