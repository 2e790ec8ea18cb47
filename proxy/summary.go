package proxy

import (
	"redial/config"
)

// Summary is Status without what takes long to collect, for metrics.
type Summary struct {
	Sync SyncStatus
	// Serving and Refusing count frontends with usable backends and without.
	Serving, Refusing int
	Shared            int              // those of them that share a proxy port
	Services          []ServiceSummary // in no order
}

// ServiceSummary is one Service.
type ServiceSummary struct {
	Name     config.ServiceName
	Skipped  bool
	Problems []string // their reasons
	// Ready and Terminating count the endpoints in use, Unused the others, once for every Service port.
	Ready, Terminating, Unused int
}

// Summary may be called at any time, from any goroutine.
func (p *Proxier) Summary() Summary {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Summary{Sync: p.syncStatus(), Services: make([]ServiceSummary, 0, len(p.wanted))}
	for _, f := range p.frontends {
		if f.open {
			s.Serving++
		} else {
			s.Refusing++
		}
		if f.shared != nil {
			s.Shared++
		}
	}
	for name, svc := range p.wanted {
		s.Services = append(s.Services, p.serviceSummary(name, svc))
	}
	return s
}

func (p *Proxier) serviceSummary(name config.ServiceName, svc *config.Service) ServiceSummary {
	out := ServiceSummary{Name: name, Skipped: svc.Skipped != ""}
	for _, problem := range p.allProblems(name) {
		out.Problems = append(out.Problems, problem.Reason)
	}
	for i := range svc.Ports {
		for _, family := range config.Families {
			ready := false
			for _, e := range svc.Ports[i].Endpoints {
				if config.FamilyOf(e.Addr.Addr()) == family && e.Ready {
					ready = true
					out.Ready++
				}
			}
			for _, e := range svc.Ports[i].Endpoints {
				switch {
				case config.FamilyOf(e.Addr.Addr()) != family || e.Ready:
				case !ready && e.Serving && e.Terminating:
					out.Terminating++
				default:
					out.Unused++
				}
			}
		}
	}
	return out
}
