package config

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
)

func prefixes(s ...string) []netip.Prefix {
	out := []netip.Prefix{}
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func TestSourceRanges(t *testing.T) {
	broken := func(at string) Problem { return Problem{Reason: ReasonInvalidSourceRange, Message: at} }
	none := func(f Family) Problem {
		return Problem{Reason: ReasonNoSourceRange, Message: "no source range is " + string(f) + ","}
	}
	for _, c := range []struct {
		name       string
		ranges     []string
		annotation string
		dual       bool
		want       []netip.Prefix // nil is everybody
		problems   []Problem
	}{
		{name: "none"},
		{name: "one", ranges: []string{"10.0.0.0/8"}, want: prefixes("10.0.0.0/8")},
		{name: "everybody, said aloud", ranges: []string{"0.0.0.0/0"}},
		{name: "everybody among others", ranges: []string{"10.0.0.0/8", "0.0.0.0/0"}, want: prefixes("0.0.0.0/0", "10.0.0.0/8")},
		{name: "one address", ranges: []string{"192.0.2.7/32"}, want: prefixes("192.0.2.7/32")},
		{name: "spaces", ranges: []string{" 10.0.0.0/8\t", "\n192.0.2.0/24 "}, want: prefixes("10.0.0.0/8", "192.0.2.0/24")},
		{name: "masked, sorted, once", ranges: []string{"192.0.2.9/24", "10.1.2.3/8", "192.0.2.0/24", "10.0.0.0/16"},
			want: prefixes("10.0.0.0/8", "10.0.0.0/16", "192.0.2.0/24")},
		{name: "mapped", ranges: []string{"::ffff:10.0.0.0/104"}, want: prefixes("10.0.0.0/8")},
		{name: "all that is mapped", ranges: []string{"::ffff:0:0/96"}},
		{name: "both families", dual: true, ranges: []string{"2001:db8::1/32", "10.0.0.0/8"}, want: prefixes("10.0.0.0/8", "2001:db8::/32")},
		{name: "a family the Service lacks", ranges: []string{"::/0", "10.0.0.0/8"}, want: prefixes("10.0.0.0/8")},
		{name: "only a family the Service lacks", ranges: []string{"2001:db8::/32"}, want: prefixes(), problems: []Problem{none(IPv4)}},
		{name: "one family of two", dual: true, ranges: []string{"10.0.0.0/8"}, want: prefixes("10.0.0.0/8"), problems: []Problem{none(IPv6)}},
		{name: "everybody of one family of two", dual: true, ranges: []string{"0.0.0.0/0"}},
		{name: "the other family of two", dual: true, ranges: []string{"2001:db8::/32"}, want: prefixes("2001:db8::/32"), problems: []Problem{none(IPv4)}},
		{name: "one is broken", ranges: []string{"10.0.0.0/33", "192.0.2.0/24"}, want: prefixes("192.0.2.0/24"),
			problems: []Problem{broken(`spec.loadBalancerSourceRanges[0] "10.0.0.0/33"`)}},
		{name: "all are broken", ranges: []string{"", "10.0.0.1", "010.0.0.0/8", "fe80::%eth0/64", "0.0.0.0/00"}, want: prefixes(),
			problems: []Problem{broken("[0]"), broken("[1]"), broken("[2]"), broken("[3]"), broken("[4]"), none(IPv4)}},
		{name: "the annotation, which is for others", annotation: "192.0.2.0/24, 10.0.0.0/8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			vips := addrs("192.0.2.1")
			got := plain(newService(func(s *v1.Service) {
				s.Spec.Type, s.Spec.LoadBalancerSourceRanges = v1.ServiceTypeLoadBalancer, c.ranges
				s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.1"}}
				if c.dual {
					s.Spec.ClusterIPs = []string{"10.0.0.1", "fd00::1"}
					s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: "2001:db8::1"})
					vips = addrs("192.0.2.1", "2001:db8::1")
				}
				if c.annotation != "" {
					s.Annotations = map[string]string{v1.AnnotationLoadBalancerSourceRangesKey: c.annotation}
				}
			}))
			require.Equal(t, c.want, got.Ports[0].SourceRanges)
			require.Equal(t, vips, got.Ports[0].LoadBalancerIPs)
			require.Equal(t, "10.0.0.1", got.Ports[0].ClusterIPs[0].String(), "the rest is served")
			requireProblems(t, got.Problems, c.problems...)
			requireSound(t, &got)
		})
	}
}

// Without an address that they could concern, ranges may be wrong but cannot be missing; other types have none.
func TestSourceRangesWithoutAddresses(t *testing.T) {
	ranges := func(s *v1.Service) {
		s.Spec.Type, s.Spec.LoadBalancerSourceRanges = v1.ServiceTypeLoadBalancer, []string{"::/0"}
	}
	require.Empty(t, plain(newService(ranges)).Problems)
	got := plain(newService(ranges, func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeNodePort }))
	require.Nil(t, got.Ports[0].SourceRanges)
}

// An address that is both an externalIP and the load balancer's is as restricted as the latter.
func TestSourceRangesOfAnExternalIP(t *testing.T) {
	svc := newService(func(s *v1.Service) {
		s.Spec.Type, s.Spec.ExternalIPs = v1.ServiceTypeLoadBalancer, []string{"192.0.2.1", "192.0.2.2"}
		s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	})
	require.Equal(t, addrs("192.0.2.1", "192.0.2.2"), plain(svc).Ports[0].ExternalIPs)
	svc.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"}
	require.Equal(t, addrs("192.0.2.2"), plain(svc).Ports[0].ExternalIPs)
}
