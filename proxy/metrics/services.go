package metrics

var (
	services = gauge("redial_services",
		"Services known, by whether they are to be proxied.", "state")
	problems = gauge("redial_problems",
		"What is wrong with Services now, by reason.", "reason")
	backends = gauge("redial_backends",
		"Endpoints of Service ports: ready ones, terminating ones in use for want of ready ones, and those not used.", "state")
	ejected = gauge("redial_backends_ejected",
		"Backends that get no connections for their failures now.")
	// Of those Services only that have any: so there are few, and a Service that is well has none.
	serviceEjected = gauge("redial_service_backends_ejected",
		"Backends of a Service that get no connections for their failures now; Services without any have no series.", "namespace", "service")
)

func (e emit) services(s *Snapshot) {
	var proxied, skipped, ready, terminating, unused, out, waiting int
	reasons := map[string]int{}
	for i := range s.Services {
		svc := &s.Services[i]
		if svc.Skipped {
			skipped++
		} else {
			proxied++
		}
		for _, reason := range svc.Problems {
			reasons[utf8(reason)]++
		}
		ready += svc.Ready
		terminating += svc.Terminating
		unused += svc.Unused
		out += svc.Ejected
		waiting += svc.Waiting
		if svc.Ejected > 0 {
			set(e, serviceEjected, svc.Ejected, utf8(svc.Name.Namespace), utf8(svc.Name.Name))
		}
	}
	set(e, ejected, out)
	set(e, connectionsWaiting, waiting)
	set(e, services, proxied, "proxied")
	set(e, services, skipped, "skipped")
	for reason, n := range reasons {
		set(e, problems, n, reason)
	}
	set(e, backends, ready, "ready")
	set(e, backends, terminating, "terminating")
	set(e, backends, unused, "unused")
}

// Those of each Service, only if asked for. Counts begin anew when a Service's ports change.
var (
	serviceActive = gauge("redial_service_connections_active",
		"Connections and UDP sessions of a Service.", "namespace", "service")
	serviceWaiting = gauge("redial_service_connections_waiting",
		"TCP connections of a Service that wait because of its limits.", "namespace", "service")
	serviceConnections = counter("redial_service_connections_total",
		"Connections and UDP sessions of a Service, by whether they reached a backend, and if not, why.", "namespace", "service", "result")
	serviceRetried = counter("redial_service_retried_total",
		"Connections and UDP sessions of a Service that were saved by trying another backend.", "namespace", "service")
	serviceBytes = counter("redial_service_forwarded_bytes_total",
		"Bytes passed on for a Service.", "namespace", "service", "direction")
	serviceBackends = gauge("redial_service_backends",
		"Endpoints of a Service's ports by whether they are used.", "namespace", "service", "state")
	serviceProblems = gauge("redial_service_problems",
		"Number of things wrong with a Service now.", "namespace", "service")
)

func (e emit) service(s *Service) {
	if s.Skipped {
		return
	}
	traffic := s.Traffic
	if traffic == nil {
		traffic = &Traffic{}
	}
	namespace, name := utf8(s.Name.Namespace), utf8(s.Name.Name)
	set(e, serviceActive, traffic.Active, namespace, name)
	set(e, serviceWaiting, s.Waiting, namespace, name)
	e.results(serviceConnections, traffic, namespace, name)
	set(e, serviceRetried, traffic.Retried, namespace, name)
	set(e, serviceBytes, traffic.BytesIn, namespace, name, toBackend)
	set(e, serviceBytes, traffic.BytesOut, namespace, name, toClient)
	set(e, serviceBackends, s.Ready, namespace, name, "ready")
	set(e, serviceBackends, s.Terminating, namespace, name, "terminating")
	set(e, serviceBackends, s.Unused, namespace, name, "unused")
	set(e, serviceProblems, len(s.Problems), namespace, name)
}
