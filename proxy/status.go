package proxy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"redial/balancer"
	"redial/config"
	"redial/proxy/relay"
)

// Status is what a Proxier is doing, for people and dashboards. It marshals to JSON.
type Status struct {
	Sync     SyncStatus      `json:"sync"`
	Services []ServiceStatus `json:"services"` // sorted by name
}

// SyncStatus tells how keeping the rules goes.
type SyncStatus struct {
	Syncs    uint64        `json:"syncs"`    // runs, failed ones included
	Failures uint64        `json:"failures"` // runs after which the rules may not be as wanted
	Repairs  uint64        `json:"repairs"`  // times the rules had been changed by somebody else
	Last     time.Time     `json:"last"`     // begin of the last run; zero before the first
	Took     time.Duration `json:"took"`     // nanoseconds
	Error    string        `json:"error,omitempty"`
}

// ServiceStatus is one Service.
type ServiceStatus struct {
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	Skipped   string           `json:"skipped,omitempty"` // why it is not proxied
	Problems  []config.Problem `json:"problems,omitempty"`
	Ports     []PortStatus     `json:"ports,omitempty"`
}

// PortStatus is one port of a Service.
type PortStatus struct {
	Name     string           `json:"name,omitempty"`
	Protocol config.Protocol  `json:"protocol"`
	Port     uint16           `json:"port"`
	Affinity time.Duration    `json:"affinity,omitempty"` // nanoseconds; 0 means none
	Fronts   []FrontendStatus `json:"frontends"`
}

// FrontendStatus is one family's listener of a Service port.
type FrontendStatus struct {
	Family    config.Family   `json:"family"`
	ProxyPort uint16          `json:"proxyPort"`
	Listen    []string        `json:"listen"`
	VIPs      []VIPStatus     `json:"vips"`
	Serving   bool            `json:"serving"` // false: clients are refused, there is no usable backend
	Stats     relay.Stats     `json:"stats"`
	Pins      int             `json:"pins"`      // clients held by session affinity
	Evictions uint64          `json:"evictions"` // pins forgotten because there were too many
	Backends  []BackendStatus `json:"backends"`
}

// VIPStatus is an address that is steered to a frontend. The address of a NodePort is empty: every address of the node.
type VIPStatus struct {
	Kind    string `json:"kind"`
	Address string `json:"address,omitempty"`
	Port    uint16 `json:"port"`
}

// The states a backend can be in.
const (
	StateReady       = "ready"
	StateTerminating = "terminating" // still in use, for want of a ready one
	StateUnused      = "unused"      // not ready, or terminating while others are ready
)

// BackendStatus is one endpoint.
type BackendStatus struct {
	Address   string     `json:"address"`
	State     string     `json:"state"`
	Node      string     `json:"node,omitempty"`
	Active    int64      `json:"active"`
	Picked    uint64     `json:"picked"`
	Connected uint64     `json:"connected"`
	Failed    uint64     `json:"failed"`
	LastError string     `json:"lastError,omitempty"`
	LastTime  *time.Time `json:"lastErrorTime,omitempty"`
}

// Status returns the present state. It may be called at any time, from any goroutine.
func (p *Proxier) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Status{Sync: p.sync, Services: []ServiceStatus{}}
	byPort := map[config.ServicePortName][]*frontend{}
	for key, f := range p.frontends {
		byPort[key.name] = append(byPort[key.name], f)
	}
	for _, svc := range p.wanted {
		s.Services = append(s.Services, p.serviceStatus(svc, byPort))
	}
	slices.SortFunc(s.Services, func(a, b ServiceStatus) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return s
}

func (p *Proxier) serviceStatus(svc *config.Service, fronts map[config.ServicePortName][]*frontend) ServiceStatus {
	s := ServiceStatus{
		Namespace: svc.Name.Namespace, Name: svc.Name.Name,
		Skipped: svc.Skipped, Problems: p.allProblems(svc.Name),
	}
	for i := range svc.Ports {
		port := &svc.Ports[i]
		ps := PortStatus{
			Name: port.Name.Port, Protocol: port.Name.Protocol, Port: port.Port, Affinity: port.Affinity,
			Fronts: []FrontendStatus{},
		}
		fs := fronts[port.Name]
		slices.SortFunc(fs, func(a, b *frontend) int { return a.key.compare(b.key) })
		for _, f := range fs {
			ps.Fronts = append(ps.Fronts, f.status(port))
		}
		s.Ports = append(s.Ports, ps)
	}
	return s
}

func (f *frontend) status(port *config.ServicePort) FrontendStatus {
	s := FrontendStatus{
		Family: f.key.family, ProxyPort: f.port, Serving: f.open, Stats: f.stats(),
		Pins: f.balancer.Pins(), Evictions: f.balancer.Evictions(),
		Listen: []string{}, VIPs: []VIPStatus{}, Backends: []BackendStatus{},
	}
	for _, addr := range slices.SortedFunc(maps.Keys(f.listeners), netip.AddrPort.Compare) {
		s.Listen = append(s.Listen, addr.String())
	}
	for _, v := range f.vips {
		vs := VIPStatus{Kind: v.kind, Port: v.Port}
		if !v.NodePort() {
			vs.Address = v.Addr.String()
		}
		s.VIPs = append(s.VIPs, vs)
	}
	counts := map[netip.AddrPort]balancer.BackendStatus{}
	for _, b := range f.balancer.Backends() {
		counts[b.Addr] = b
	}
	for _, e := range port.Endpoints {
		if config.FamilyOf(e.Addr.Addr()) == f.key.family {
			b, used := counts[e.Addr]
			s.Backends = append(s.Backends, backendStatus(e, b, used))
		}
	}
	return s
}

func backendStatus(e config.Endpoint, b balancer.BackendStatus, used bool) BackendStatus {
	s := BackendStatus{
		Address: e.Addr.String(), State: StateUnused, Node: e.NodeName,
		Active: b.Active, Picked: b.Picked, Connected: b.Connected, Failed: b.Failed, LastError: b.LastError,
	}
	switch {
	case used && e.Ready:
		s.State = StateReady
	case used:
		s.State = StateTerminating
	}
	if !b.LastErrorTime.IsZero() {
		s.LastTime = &b.LastErrorTime
	}
	return s
}
