package proxy

import (
	"redial/balancer"
	"redial/config"
	"redial/proxy/relay"
)

// Summary is Status without what takes long to collect, for metrics.
type Summary struct {
	Sync SyncStatus
	// Serving and Refusing count frontends with usable backends and without.
	Serving, Refusing int
	// Shared counts those of them that share a proxy port.
	Shared int
	// Balancer adds up all frontends there have been.
	Balancer balancer.Counters
	Services []ServiceSummary // in no order
}

// ServiceSummary is one Service.
type ServiceSummary struct {
	Name     config.ServiceName
	Skipped  bool
	Problems []string // their reasons
	// Ready and Terminating count the endpoints in use, Unused the others, once for every Service port.
	Ready, Terminating, Unused int
	// Ejected counts backends that get no connections for their failures, once for every frontend.
	Ejected int
	// Waiting is how many connections wait for a limit's sake.
	Waiting int
	// Stats adds up the present frontends; nil: nobody has asked.
	Stats *relay.Stats
}

// Summary may be called at any time, from any goroutine. stats says whether those of each Service are wanted: with many
// Services they are most of it.
func (p *Proxier) Summary(stats bool) Summary {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Summary{Sync: p.syncStatus(), Balancer: p.retired, Services: make([]ServiceSummary, 0, len(p.wanted))}
	at := make(map[config.ServiceName]int, len(p.wanted))
	for name, svc := range p.wanted {
		at[name] = len(s.Services)
		s.Services = append(s.Services, p.serviceSummary(name, svc))
	}
	for key, f := range p.frontends {
		if f.open {
			s.Serving++
		} else {
			s.Refusing++
		}
		if f.shared != nil {
			s.Shared++
		}
		s.Balancer = s.Balancer.Add(f.balancer.Counters())
		if i, ok := at[key.name.Service]; ok { // otherwise the frontend is about to be closed
			s.Services[i].Ejected += f.balancer.Ejected()
			if stats {
				sum := f.stats()
				if before := s.Services[i].Stats; before != nil {
					sum = sum.Add(*before)
				}
				s.Services[i].Stats = &sum
			}
		}
	}
	for name, limit := range p.limits {
		if i, ok := at[name.Service]; ok {
			s.Services[i].Waiting += limit.Status().Waiting
		}
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
