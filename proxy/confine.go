package proxy

import (
	"maps"

	"redial/config"
	"redial/proxy/intercept"
)

// confine takes out of the plan what the Interceptor cannot do, before anything is listened for: what its owner has
// restricted, and what cannot be restricted, is not served at all.
//
// Where clients cannot be told apart, an external traffic policy Local holds for those on this node too. To give everybody
// the endpoints of all nodes would break what the policy promises, to give nobody any would cut off those it is for.
func (p *plan) confine(limits map[config.Family]intercept.Limits, restrictedNodePorts bool) {
	if !limits[config.IPv4].ClientsAlike && !limits[config.IPv6].ClientsAlike {
		return
	}
	complain := func(name config.ServicePortName, v vip, what string) {
		p.problems.add(name, ReasonUnrestricted, "%s %s %s, and clients cannot be told apart without netfilter: it is not served; use --interception iptables where the kernel has a nat table", v.kind, v.VIP, what)
		delete(p.owners, v.VIP)
	}
	for _, key := range p.keys() {
		if !limits[key.family].ClientsAlike {
			continue
		}
		vips := p.frontends[key]
		kept := vips[:0]
		for _, v := range vips {
			switch {
			case v.from == fromNode:
				continue
			case v.sources != nil:
				complain(key.name, v, "is for some clients only (loadBalancerSourceRanges)")
				continue
			case v.NodePort() && restrictedNodePorts:
				complain(key.name, v, "is to be open at some addresses of the node only (--nodeport-addresses, --iptables-localhost-nodeports)")
				continue
			}
			v.from = fromAnywhere
			kept = append(kept, v)
		}
		p.frontends[key] = kept
	}
	p.sorted = nil
	maps.DeleteFunc(p.frontends, func(_ frontendKey, vips []vip) bool { return len(vips) == 0 })
}

// interceptLimits are those of the Interceptor.
func (p *Proxier) interceptLimits() map[config.Family]intercept.Limits {
	limits := map[config.Family]intercept.Limits{}
	for _, family := range config.Families {
		limits[family] = limitsIn(family, p.cfg.Interceptor)
	}
	return limits
}

func limitsIn(family config.Family, i intercept.Interceptor) intercept.Limits {
	return intercept.LimitsOf(i, family == config.IPv6)
}
