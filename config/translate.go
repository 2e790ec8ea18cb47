package config

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// labelServiceProxyName hands a Service to the proxy it names; kube-proxy itself leaves all that have it alone, whatever
// the value. It is read since Kubernetes 1.14; the API module has no constant for it.
const labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// defaultAffinity is the API server's default for sessionAffinityConfig.clientIP.timeoutSeconds. Manifests are not
// defaulted by an API server, so it has to be known here; maxAffinity is the API's upper bound.
const (
	defaultAffinity = 10800 * time.Second
	maxAffinity     = 86400
)

// translate turns a Service into its value, without endpoints. It is total: fields the API server would have refused
// (manifests were never seen by one) become Problems, and what is right in the object is kept.
func translate(svc *v1.Service, opts Options) Service {
	out := Service{Name: serviceName(svc), Created: created(svc.ObjectMeta), Skipped: skipped(svc, opts)}
	if out.Skipped != "" {
		return out
	}
	var p problems
	families, clusterIPs := familiesAndClusterIPs(svc.Spec, &p)
	front := ServicePort{ClusterIPs: clusterIPs}
	if len(families) > 0 {
		front.LoadBalancerIPs = loadBalancerIPs(svc, families, &p)
		front.SourceRanges = sourceRanges(svc, families, front.LoadBalancerIPs, &p)
		front.ExternalIPs = externalIPs(svc.Spec, opts, families, &p)
		if front.SourceRanges != nil {
			// One address cannot be restricted in one role and open in the other.
			front.ExternalIPs = without(front.ExternalIPs, front.LoadBalancerIPs)
		}
	}
	front.Affinity = affinity(svc.Spec, &p)
	front.Settings = settings(svc.Annotations, &p)
	front.InternalLocal, front.ExternalLocal = policies(svc.Spec, &p)
	health := healthCheckNodePort(svc.Spec, front.ExternalLocal, &p)
	if len(families) > 0 {
		out.Ports = servicePorts(out.Name, svc.Spec, front, families, &p)
		unusedAnnotations(svc.Annotations, out.Ports, &p)
	}
	if len(out.Ports) > 0 {
		out.HealthCheckNodePort = health
	}
	out.IPFamilies = families
	out.Problems = p
	return out
}

// serviceName is the object's identity. An absent namespace is what kubectl would make of it.
func serviceName(svc *v1.Service) ServiceName {
	return ServiceName{Namespace: namespace(svc.Namespace), Name: svc.Name}
}

func namespace(ns string) string { return intern(cmp.Or(ns, metav1.NamespaceDefault)) }

func created(m metav1.ObjectMeta) time.Time {
	if m.CreationTimestamp.IsZero() {
		return time.Time{}
	}
	return m.CreationTimestamp.UTC()
}

// skipped says why a Service is not for this proxy, or "".
func skipped(svc *v1.Service, opts Options) string {
	name, ok := svc.Labels[labelServiceProxyName]
	switch {
	case ok && (name == "" || name != opts.ServiceProxyName):
		return "left to the Service proxy " + strconv.Quote(name) + " by the label " + labelServiceProxyName
	case !ok && opts.ServiceProxyName != "":
		return "without the label " + labelServiceProxyName + ": only Services with the value " +
			strconv.Quote(opts.ServiceProxyName) + " are served"
	}
	// Before the ClusterIP: the API server keeps a stale clusterIP on a Service turned into an ExternalName.
	if svc.Spec.Type == v1.ServiceTypeExternalName {
		return "ExternalName"
	}
	ips := specClusterIPs(svc.Spec)
	if slices.Contains(ips, v1.ClusterIPNone) {
		return "headless"
	}
	if len(ips) == 0 {
		return "no clusterIP: set spec.clusterIP to an unused address of the service range"
	}
	return ""
}

// externalIPs are the addresses of spec.externalIPs that are served.
func externalIPs(spec v1.ServiceSpec, opts Options, families []Family, p *problems) []netip.Addr {
	if opts.DisableExternalIPs && len(spec.ExternalIPs) > 0 {
		p.add(ReasonExternalIPsDisabled, "spec.externalIPs %s are not served: this proxy is told to ignore externalIPs",
			strings.Join(spec.ExternalIPs, ", "))
		return nil
	}
	return addresses("spec.externalIPs", spec.ExternalIPs, families, p)
}

func without(list, others []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(list, func(a netip.Addr) bool { return slices.Contains(others, a) })
}

// loadBalancerIPs are the addresses this node has to serve in the load balancer's stead: those in mode VIP (KEP-1860).
// Traffic to any other ingress has to go out to the load balancer.
func loadBalancerIPs(svc *v1.Service, families []Family, p *problems) []netip.Addr {
	if svc.Spec.Type != v1.ServiceTypeLoadBalancer {
		return nil
	}
	var in []field
	for i, ingress := range svc.Status.LoadBalancer.Ingress {
		f := field{index("status.loadBalancer.ingress", i), ingress.IP}
		switch {
		case ingress.IP == "":
		case ingress.IPMode == nil || *ingress.IPMode == v1.LoadBalancerIPModeVIP:
			f.name += ".ip"
			in = append(in, f)
		case *ingress.IPMode != v1.LoadBalancerIPModeProxy:
			p.add(ReasonInvalidField, "%s.ipMode %q is neither VIP nor Proxy: %s is not served", f.name, *ingress.IPMode, f.value)
		}
	}
	return parseAddresses(in, families, p)
}

// affinity is how long a client stays with its backend; 0 means no affinity.
func affinity(spec v1.ServiceSpec, p *problems) time.Duration {
	switch spec.SessionAffinity {
	case "", v1.ServiceAffinityNone:
		return 0
	case v1.ServiceAffinityClientIP:
	default:
		p.add(ReasonInvalidAffinity, "spec.sessionAffinity %q is neither None nor ClientIP: None is used", spec.SessionAffinity)
		return 0
	}
	c := spec.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		return defaultAffinity
	}
	if s := *c.ClientIP.TimeoutSeconds; s >= 1 && s <= maxAffinity {
		return time.Duration(s) * time.Second
	}
	p.add(ReasonInvalidAffinity, "spec.sessionAffinityConfig.clientIP.timeoutSeconds %d is not within 1-%d: %d is used",
		*c.ClientIP.TimeoutSeconds, maxAffinity, int(defaultAffinity/time.Second))
	return defaultAffinity
}
