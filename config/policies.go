package config

import v1 "k8s.io/api/core/v1"

// policies returns whether the traffic policies for ClusterIPs and for all other addresses are Local. A value that the
// API may come to know later is served as Cluster, which reaches the Service from everywhere.
func policies(spec v1.ServiceSpec, p *problems) (internalLocal, externalLocal bool) {
	local := func(field, value string) bool {
		switch value {
		case "", "Cluster":
		case "Local":
			return true
		default:
			p.add(ReasonUnsupportedPolicy, "spec.%s %q is neither Cluster nor Local: Cluster is used", field, value)
		}
		return false
	}
	if spec.InternalTrafficPolicy != nil {
		internalLocal = local("internalTrafficPolicy", string(*spec.InternalTrafficPolicy))
	}
	externalLocal = local("externalTrafficPolicy", string(spec.ExternalTrafficPolicy))
	if externalLocal && !externallyAccessible(spec) {
		p.add(ReasonInvalidField, "spec.externalTrafficPolicy Local needs spec.type NodePort or LoadBalancer, or "+
			"spec.externalIPs: there is no external traffic that it could concern")
		externalLocal = false
	}
	return internalLocal, externalLocal
}

func externallyAccessible(spec v1.ServiceSpec) bool {
	return spec.Type == v1.ServiceTypeNodePort || spec.Type == v1.ServiceTypeLoadBalancer || len(spec.ExternalIPs) > 0
}

// healthCheckNodePort is the port at which load balancers ask this node, or 0. Only they do, and only where it matters
// which node they choose.
func healthCheckNodePort(spec v1.ServiceSpec, externalLocal bool, p *problems) uint16 {
	if spec.HealthCheckNodePort == 0 {
		return 0
	}
	if spec.Type != v1.ServiceTypeLoadBalancer || !externalLocal {
		p.add(ReasonInvalidField, "spec.healthCheckNodePort %d needs spec.type LoadBalancer and spec.externalTrafficPolicy "+
			"Local: it is not opened", spec.HealthCheckNodePort)
		return 0
	}
	number, ok := portNumber(spec.HealthCheckNodePort)
	if !ok {
		p.add(ReasonInvalidField, "spec.healthCheckNodePort %d is not within 1-65535: it is not opened, and load balancers "+
			"cannot see whether this node has endpoints", spec.HealthCheckNodePort)
	}
	return number
}
