package config

import (
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// sourceRanges are the clients that may use the load balancer addresses vips: masked, sorted, without duplicates, of the
// Service's families. Nil means that the owner restricts nobody.
//
// Whoever gives ranges wants others kept out, so nothing that is wrong with them may open the addresses: a range that
// cannot be read lets nobody in, and the addresses of a family without a range are for nobody.
//
// The annotation service.beta.kubernetes.io/load-balancer-source-ranges does not count, as with kube-proxy: it is for what
// makes the load balancer, and enforced there.
func sourceRanges(svc *v1.Service, families []Family, vips []netip.Addr, p *problems) []netip.Prefix {
	if svc.Spec.Type != v1.ServiceTypeLoadBalancer {
		return nil
	}
	out, everybody := []netip.Prefix{}, true
	for i, text := range svc.Spec.LoadBalancerSourceRanges {
		r, err := parsePrefix(strings.TrimSpace(text))
		everybody = everybody && err == nil && r.Bits() == 0
		if err != nil {
			p.add(ReasonInvalidSourceRange, "%s %q is not a range like 192.0.2.0/24 or 192.0.2.1/32: it lets nobody in",
				index("spec.loadBalancerSourceRanges", i), text)
			continue
		}
		// Ranges of a family that the Service lacks are usual where one list is given to all Services.
		if slices.Contains(families, FamilyOf(r.Addr())) {
			out = append(out, r)
		}
	}
	if everybody { // also where a dual-stack Service has just 0.0.0.0/0: nobody was to be kept out
		return nil
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	out = slices.Compact(out)
	for _, family := range families {
		is := func(a netip.Addr) bool { return FamilyOf(a) == family }
		if slices.ContainsFunc(vips, is) && !slices.ContainsFunc(out, func(r netip.Prefix) bool { return is(r.Addr()) }) {
			p.add(ReasonNoSourceRange, "no source range is %s, so nobody may use the %s load balancer addresses: "+
				"add one to spec.loadBalancerSourceRanges", family, family)
		}
	}
	return out
}

// parsePrefix parses a range of an object, and masks it. A range of v4-mapped addresses is one of IPv4, as the addresses
// are on the wire.
func parsePrefix(s string) (netip.Prefix, error) {
	r, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	if a := r.Addr(); a.Is4In6() && r.Bits() >= 96 {
		r = netip.PrefixFrom(a.Unmap(), r.Bits()-96)
	}
	return r.Masked(), nil
}
