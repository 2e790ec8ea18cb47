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
func sourceRanges(svc *v1.Service, families []Family, vips []netip.Addr, p *problems) []netip.Prefix {
	if svc.Spec.Type != v1.ServiceTypeLoadBalancer {
		return nil
	}
	in := specSourceRanges(svc)
	if len(in) == 0 {
		return nil
	}
	out := []netip.Prefix{}
	for _, f := range in {
		r, err := parsePrefix(strings.TrimSpace(f.value))
		if err != nil {
			p.add(ReasonInvalidSourceRange, "%s %q is not a range like 192.0.2.0/24 or 192.0.2.1/32: it lets nobody in",
				f.name, f.value)
			continue
		}
		// Ranges of a family that the Service lacks are usual where one list is given to all Services.
		if slices.Contains(families, FamilyOf(r.Addr())) {
			out = append(out, r)
		}
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

// specSourceRanges are the ranges as given: in the field or else, as before Kubernetes 1.2, separated by commas in the
// annotation, where blank is the same as absent.
func specSourceRanges(svc *v1.Service) []field {
	list, values := "spec.loadBalancerSourceRanges", svc.Spec.LoadBalancerSourceRanges
	if len(values) == 0 {
		annotation := svc.Annotations[v1.AnnotationLoadBalancerSourceRangesKey]
		if strings.TrimSpace(annotation) == "" {
			return nil
		}
		list, values = "annotation "+v1.AnnotationLoadBalancerSourceRangesKey, strings.Split(annotation, ",")
	}
	out := make([]field, len(values))
	for i, v := range values {
		out[i] = field{index(list, i), v}
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
