package proxy

import (
	"cmp"
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
	Shared   []SharedStatus  `json:"shared,omitempty"` // sorted by family, pool and port
	Services []ServiceStatus `json:"services"`         // sorted by name
}

// SyncStatus tells how keeping the rules goes.
type SyncStatus struct {
	Syncs    uint64        `json:"syncs"`    // runs, failed ones included
	Failures uint64        `json:"failures"` // runs after which the rules may not be as wanted
	Repairs  uint64        `json:"repairs"`  // times the rules had been changed by somebody else
	Last     time.Time     `json:"last"`     // begin of the last run; zero before the first
	Took     time.Duration `json:"took"`     // nanoseconds
	// Delivered is when the source had handed over all there was at the start; zero before.
	Delivered time.Time `json:"delivered,omitzero"`
	// LastSuccess is the end of the last run that did not fail; zero before the first.
	LastSuccess time.Time `json:"lastSuccess,omitzero"`
	Error       string    `json:"error,omitempty"`

	Queued          time.Time `json:"queued"`          // when a sync was asked for last; zero before the first
	ServiceChanges  uint64    `json:"serviceChanges"`  // changes of Services so far
	EndpointChanges uint64    `json:"endpointChanges"` // changes of a Service's endpoints so far
	// Those of them that need rules which are not known to be written. Endpoints seldom do.
	PendingServiceChanges  uint64 `json:"pendingServiceChanges"`
	PendingEndpointChanges uint64 `json:"pendingEndpointChanges"`
	// NoLocal counts the Service ports that this node drops, for each traffic policy that is Local.
	NoLocal []NoLocal `json:"noLocal"`
}

// NoLocal counts Service ports with a traffic policy Local that have endpoints, but none on this node.
type NoLocal struct {
	Family   config.Family `json:"family"`
	Internal int           `json:"internal"` // by spec.internalTrafficPolicy
	External int           `json:"external"` // by spec.externalTrafficPolicy
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
	Name     string          `json:"name,omitempty"`
	Protocol config.Protocol `json:"protocol"`
	Port     uint16          `json:"port"`
	Affinity time.Duration   `json:"affinity,omitempty"` // nanoseconds; 0 means none
	// Asked are the annotations in force, "idle-timeout=5m0s".
	Asked []string `json:"asked,omitempty"`
	// Limit is that of connections, if the Service asks for one; its frontends share it.
	Limit  *relay.LimitStatus `json:"limit,omitempty"`
	Fronts []FrontendStatus   `json:"frontends"`
}

// FrontendStatus is one family's listener of a Service port, for one pool of endpoints.
type FrontendStatus struct {
	Family    config.Family   `json:"family"`
	Pool      config.Pool     `json:"pool"`
	ProxyPort uint16          `json:"proxyPort"`        // 0: it listens on the VIPs themselves
	Shared    bool            `json:"shared,omitempty"` // the proxy port is that of other frontends too
	Listen    []string        `json:"listen"`
	VIPs      []VIPStatus     `json:"vips"`
	Serving   bool            `json:"serving"` // false: there is no usable backend; clients are refused, or dropped where a VIP says so
	Stats     relay.Stats     `json:"stats"`
	Scheduler string          `json:"scheduler"`
	Pins      int             `json:"pins"` // clients held by session affinity
	Balancer  BalancerStatus  `json:"balancer"`
	Backends  []BackendStatus `json:"backends"`
}

// BalancerStatus counts what has happened to the backends of a frontend since it was opened.
type BalancerStatus = balancer.Counters

// VIPStatus is an address that is steered to a frontend. The address of a NodePort is empty: every address of the node
// at which NodePorts are open.
type VIPStatus struct {
	Kind    string `json:"kind"`
	Address string `json:"address,omitempty"`
	Port    uint16 `json:"port"`
	// From is which clients come to this frontend: "node" are those on this node, "elsewhere" all others, who have a
	// frontend each with an external traffic policy Local. Empty means everybody.
	From string `json:"from,omitempty"`
	// Drops means that these clients get no answer: the policy is Local, and the usable endpoints are on other nodes.
	Drops bool `json:"drops,omitempty"`
	// Sources are the clients that are let in; null means everybody, an empty list nobody.
	Sources []string `json:"sources"`
}

// The states a backend can be in.
const (
	StateReady       = "ready"
	StateTerminating = "terminating" // still in use, for want of a ready one
	StateUnused      = "unused"      // not ready, or terminating while others are ready, or hinted to be for others
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
	Weight    int        `json:"weight"`
	// Ejection is that of a backend which is left out for its failures; nil means that it is not.
	Ejection *EjectionStatus `json:"ejection,omitempty"`
	// ConnectTime is what dials have taken lately, in nanoseconds, by a moving average; 0 means that it is not known.
	ConnectTime time.Duration `json:"connectTime,omitempty"`
	// HedgeDelay is how long the backend may stay silent before another one is dialled beside it, in nanoseconds.
	HedgeDelay time.Duration `json:"hedgeDelay,omitempty"`
}

// EjectionStatus is why a backend gets no connections.
type EjectionStatus struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"` // when it is tested next; it is back if it answers
	Times int       `json:"times"` // in a row, this time included: each is longer
	Error string    `json:"error"` // the latest reason
}

// Status returns the present state. It may be called at any time, from any goroutine.
func (p *Proxier) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Status{Sync: p.syncStatus(), Shared: p.sharedStatus(), Services: []ServiceStatus{}}
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

// SyncStatus returns the part of the Status that is cheap to have.
func (p *Proxier) SyncStatus() SyncStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.syncStatus()
}

func (p *Proxier) syncStatus() SyncStatus {
	s := p.sync
	s.PendingServiceChanges = p.syncing.services + p.queued.services
	s.PendingEndpointChanges = p.syncing.endpoints + p.queued.endpoints
	for _, family := range config.Families {
		count := NoLocal{Family: family}
		for key, f := range p.frontends {
			if key.family != family || !f.dropped {
				continue
			}
			internal := func(v vip) bool { return v.kind == kindClusterIP }
			if slices.ContainsFunc(f.vips, internal) {
				count.Internal++
			}
			if slices.ContainsFunc(f.vips, func(v vip) bool { return !internal(v) }) {
				count.External++
			}
		}
		s.NoLocal = append(s.NoLocal, count)
	}
	return s
}

func (p *Proxier) serviceStatus(svc *config.Service, fronts map[config.ServicePortName][]*frontend) ServiceStatus {
	s := ServiceStatus{
		Namespace: svc.Name.Namespace, Name: svc.Name.Name,
		Skipped: svc.Skipped, Problems: p.allProblems(svc.Name),
	}
	limits := p.interceptLimits()
	for i := range svc.Ports {
		port := &svc.Ports[i]
		ps := PortStatus{
			Name: port.Name.Port, Protocol: port.Name.Protocol, Port: port.Port, Affinity: port.Affinity,
			Asked: port.Settings.Asked(), Fronts: []FrontendStatus{},
		}
		if limit := p.limits[port.Name]; limit != nil {
			limited := limit.Status()
			ps.Limit = &limited
		}
		fs := fronts[port.Name]
		slices.SortFunc(fs, func(a, b *frontend) int { return a.key.compare(b.key) })
		for _, f := range fs {
			ps.Fronts = append(ps.Fronts, f.status(port, p.node, f.dropped && !limits[f.key.family].Refuses))
		}
		s.Ports = append(s.Ports, ps)
	}
	return s
}

func (f *frontend) status(port *config.ServicePort, node config.Node, drops bool) FrontendStatus {
	s := FrontendStatus{
		Family: f.key.family, Pool: f.key.pool, ProxyPort: f.port, Shared: f.shared != nil, Serving: f.open, Stats: f.stats(),
		Scheduler: string(f.balancer.Scheduler()), Pins: f.balancer.Pins(), Balancer: f.balancer.Counters(),
		Listen: []string{}, VIPs: []VIPStatus{}, Backends: []BackendStatus{},
	}
	for _, addr := range slices.SortedFunc(slices.Values(f.addrs()), netip.AddrPort.Compare) {
		s.Listen = append(s.Listen, addr.String())
	}
	for _, v := range f.vips {
		vs := VIPStatus{Kind: v.kind, Port: v.Port, From: v.from, Drops: drops}
		if v.sources != nil {
			vs.Sources = []string{}
			for _, r := range v.sources {
				vs.Sources = append(vs.Sources, r.String())
			}
		}
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
		local := node.Name != "" && e.Place().NodeName == node.Name
		if config.FamilyOf(e.Addr.Addr()) == f.key.family && (local || f.key.pool != config.LocalPool) {
			b, used := counts[e.Addr]
			s.Backends = append(s.Backends, backendStatus(e, b, used))
		}
	}
	return s
}

func backendStatus(e config.Endpoint, b balancer.BackendStatus, used bool) BackendStatus {
	s := BackendStatus{
		Address: e.Addr.String(), State: StateUnused, Node: e.Place().NodeName,
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
	if !b.EjectedUntil.IsZero() {
		s.Ejection = &EjectionStatus{Since: b.EjectedSince, Until: b.EjectedUntil, Times: b.Ejections, Error: b.EjectionError}
	}
	s.Weight, s.HedgeDelay, s.ConnectTime = int(e.Weight.Or(1)), b.HedgeDelay, b.ConnectTime
	return s
}
