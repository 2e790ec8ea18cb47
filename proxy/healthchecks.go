package proxy

import (
	"net/netip"
	"slices"

	"redial/config"
)

// HealthCheck is a Service's healthCheckNodePort: where load balancers ask whether this node has endpoints of it.
type HealthCheck struct {
	Service config.ServiceName
	Port    uint16
	// LocalEndpoints counts the addresses of ready endpoints on this node, over all ports and both families. Terminating
	// ones do not count, though they may still be served: load balancers are to turn away while that lasts (KEP-1669).
	LocalEndpoints int
}

// HealthCheckError says that a health check cannot be answered.
type HealthCheckError struct {
	Service config.ServiceName
	Err     error
}

// HealthChecks answers health checks.
type HealthChecks interface {
	// Sync has exactly these answered, those of older Services first: where two want one port, the first has it. It returns
	// the ones that cannot be answered, and is called again after a while if there are any. Calls never overlap.
	Sync([]HealthCheck) []HealthCheckError
}

// ReasonHealthCheckFailed is the reason kube-proxy gives in its event.
const ReasonHealthCheckFailed = "FailedToStartServiceHealthcheck"

// checkHealth notes the health check that a Service wants now. It needs p.mu.
func (p *Proxier) checkHealth(name config.ServiceName, s *config.Service) {
	before, had := p.checks[name]
	if s == nil || s.HealthCheckNodePort == 0 {
		delete(p.checks, name)
		p.checksChanged = p.checksChanged || had
		return
	}
	now := HealthCheck{Service: name, Port: s.HealthCheckNodePort, LocalEndpoints: localReady(s, p.node)}
	p.checks[name] = now
	p.checksChanged = p.checksChanged || now != before
}

// healthCheckPorts are the ports of the wanted health checks. It needs p.mu.
func (p *Proxier) healthCheckPorts() []uint16 {
	if p.cfg.HealthChecks == nil {
		return nil
	}
	var ports []uint16
	for _, c := range p.checks {
		ports = append(ports, c.Port)
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// localReady counts addresses, not endpoints: a pod with several ports is one.
func localReady(s *config.Service, node config.Node) int {
	if node.Name == "" {
		return 0
	}
	var addrs []netip.Addr
	for i := range s.Ports {
		for _, e := range s.Ports[i].Endpoints {
			if e.Ready && e.Place().NodeName == node.Name {
				addrs = append(addrs, e.Addr.Addr().Unmap())
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return len(slices.Compact(addrs))
}

// answerHealthChecks hands the wanted health checks over if they changed or again is set, and reports whether to try again
// later. Only Run's goroutine calls it.
func (p *Proxier) answerHealthChecks(again bool) (failed bool) {
	if p.cfg.HealthChecks == nil {
		return false
	}
	p.mu.Lock()
	if !p.checksChanged && !again {
		defer p.mu.Unlock()
		return len(p.checkProblems) > 0
	}
	p.checksChanged = false
	var wanted []HealthCheck
	for _, s := range inOrder(p.wanted) {
		if c, ok := p.checks[s.Name]; ok {
			wanted = append(wanted, c)
		}
	}
	p.mu.Unlock()

	errs := p.cfg.HealthChecks.Sync(wanted)

	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.checkProblems
	p.checkProblems = problems{}
	for _, e := range errs {
		p.checkProblems.add(config.ServicePortName{Service: e.Service}, ReasonHealthCheckFailed,
			"load balancers cannot ask for this node's endpoints at healthCheckNodePort %d: %v", p.checks[e.Service].Port, e.Err)
		p.logProblems(e.Service)
	}
	for name := range before {
		p.logProblems(name)
	}
	return len(errs) > 0
}
