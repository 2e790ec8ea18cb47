package config

import (
	"net/netip"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
)

// field is one value of an object and where it stands, for Problems.
type field struct{ name, value string }

func index(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// specClusterIPs is spec.clusterIPs, or spec.clusterIP where only that is given, as in most hand-written manifests.
// Empty strings are left out.
func specClusterIPs(spec v1.ServiceSpec) []string {
	ips := spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{spec.ClusterIP}
	} else if spec.ClusterIP == v1.ClusterIPNone {
		return []string{v1.ClusterIPNone}
	}
	return slices.DeleteFunc(slices.Clone(ips), func(s string) bool { return s == "" })
}

// familiesAndClusterIPs returns the families the Service is served in and its ClusterIPs, at most one per family. The
// families are spec.ipFamilies, or those of the ClusterIPs where the API server has not filled the field in.
func familiesAndClusterIPs(spec v1.ServiceSpec, p *problems) ([]Family, []netip.Addr) {
	var families []Family
	for i, f := range spec.IPFamilies {
		switch f := Family(f); {
		case !slices.Contains(Families, f):
			p.add(ReasonInvalidField, "%s %q is neither IPv4 nor IPv6: it is ignored", index("spec.ipFamilies", i), f)
		case slices.Contains(families, f):
			p.add(ReasonInvalidField, "%s repeats %s", index("spec.ipFamilies", i), f)
		default:
			families = append(families, f)
		}
	}
	allowed := families
	if len(families) == 0 {
		allowed = Families
	}
	list := "spec.clusterIPs"
	ips := spec.ClusterIPs
	if len(ips) == 0 {
		list, ips = "spec.clusterIP", []string{spec.ClusterIP}
	} else if spec.ClusterIP != "" && spec.ClusterIP != ips[0] {
		p.add(ReasonInvalidField, "spec.clusterIP %q differs from spec.clusterIPs[0] %q: spec.clusterIPs is used",
			spec.ClusterIP, ips[0])
	}
	var in []field
	for i, ip := range ips {
		if name := list; ip != "" {
			if len(spec.ClusterIPs) > 0 {
				name = index(list, i)
			}
			in = append(in, field{name, ip})
		}
	}
	var out []netip.Addr
	for _, a := range parseAddresses(in, allowed, p) {
		if slices.ContainsFunc(out, func(o netip.Addr) bool { return FamilyOf(o) == FamilyOf(a) }) {
			p.add(ReasonDuplicateAddress, "%s has a second %s address, %s: a Service has one per family", list, FamilyOf(a), a)
			continue
		}
		out = append(out, a)
	}
	if len(families) == 0 {
		for _, a := range out {
			families = append(families, FamilyOf(a))
		}
	}
	// One order, whichever family the Service puts first: nothing downstream depends on the primary family.
	slices.Sort(families)
	slices.SortFunc(out, func(a, b netip.Addr) int { return a.Compare(b) })
	return families, out
}

// addresses parses a list of the object.
func addresses(list string, values []string, families []Family, p *problems) []netip.Addr {
	in := make([]field, len(values))
	for i, v := range values {
		in[i] = field{index(list, i), v}
	}
	return parseAddresses(in, families, p)
}

// parseAddresses returns the addresses that can be a VIP in one of the families; each of the others is a Problem.
func parseAddresses(in []field, families []Family, p *problems) []netip.Addr {
	var out []netip.Addr
	seen := make(map[netip.Addr]string, len(in))
	for _, f := range in {
		a, err := parseAddr(f.value)
		if why := notUnicast(a); err != nil || why != "" {
			if err != nil {
				why = "not an IP address"
			}
			p.add(ReasonInvalidAddress, "%s %q is %s: it is not served", f.name, f.value, why)
			continue
		}
		if fam := FamilyOf(a); !slices.Contains(families, fam) {
			p.add(ReasonWrongFamily, "%s %s is %s but the Service is %s only: remove it or add %s to spec.ipFamilies",
				f.name, a, fam, families[0], fam)
			continue
		}
		if first, ok := seen[a]; ok {
			p.add(ReasonDuplicateAddress, "%s %s repeats %s", f.name, a, first)
			continue
		}
		seen[a] = f.name
		out = append(out, a)
	}
	return out
}

// parseAddr parses an address of an object. Zones are refused, as by the API: an interface name means nothing on another
// node. IPv4 with leading zeros is refused too, since programs disagree about whether those are octal (CVE-2021-29923).
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err == nil && a.Zone() != "" {
		return netip.Addr{}, strconv.ErrSyntax
	}
	return a.Unmap(), err
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// notUnicast says why an address can be nobody's VIP, or "".
func notUnicast(a netip.Addr) string {
	switch {
	case a.IsUnspecified():
		return "the unspecified address"
	case a.IsLoopback():
		return "a loopback address"
	case a.IsMulticast():
		return "a multicast address"
	case a == broadcast:
		return "the broadcast address"
	}
	return ""
}
