package health

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/sirupsen/logrus"

	"redial/config"
	"redial/proxy/server"
)

// Check is the healthCheckNodePort of one Service.
type Check struct {
	Service config.ServiceName
	// Port is the number on this node's addresses.
	Port uint16
	// LocalEndpoints counts the Service's ready endpoints on this node, each address once. Terminating ones do not count,
	// though they may still serve: load balancers shall go elsewhere.
	LocalEndpoints int
}

// CheckError says that a check is not answered, on some or all of the addresses it should be.
type CheckError struct {
	Check Check
	Err   error
}

func (e *CheckError) Error() string {
	return fmt.Sprintf("health check port %d of %s: %v", e.Check.Port, e.Check.Service, e.Err)
}

func (e *CheckError) Unwrap() error { return e.Err }

// ServicesConfig is what Services are made of. Healthy and Log are needed.
type ServicesConfig struct {
	// Healthy reports whether the proxy can take traffic. It is called for each probe.
	Healthy func() bool
	// NodePorts returns the prefixes of those addresses of the node where ports are open; nil, also of the function, means
	// all addresses of both families. Of a family without a prefix none is. It is called by each Sync.
	NodePorts func() []netip.Prefix
	Log       *logrus.Entry
}

// Services answers the health checks of Services.
type Services struct {
	cfg ServicesConfig

	running sync.WaitGroup // one of each listener

	mu     sync.Mutex
	open   map[portKey]*port
	closed bool
}

// portKey identifies a port by whose it is, so that a Service that takes over another's number gets a port of its own.
type portKey struct {
	service config.ServiceName
	number  uint16
}

// NewServices returns Services without any port open.
func NewServices(cfg ServicesConfig) *Services {
	if cfg.NodePorts == nil {
		cfg.NodePorts = func() []netip.Prefix { return nil }
	}
	return &Services{cfg: cfg, open: map[portKey]*port{}}
}

// Sync makes exactly these checks be answered. A port that was open and still is wanted stays open: only its count
// changes. An error concerns one check alone, and the next Sync tries that again. Each Sync also looks at the node's
// addresses anew, if NodePorts says that not all are meant. After Close, Sync does nothing.
func (s *Services) Sync(want []Check) []CheckError {
	addrs, addrsErr := listenAddrs(s.cfg.NodePorts())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	wanted := make(map[portKey]Check, len(want))
	for _, c := range want {
		wanted[portKey{c.Service, c.Port}] = c
	}
	// Closing comes first: another may want the number.
	for key, p := range s.open {
		if _, ok := wanted[key]; !ok {
			p.close()
			delete(s.open, key)
		}
	}
	var errs []CheckError
	for _, key := range slices.SortedFunc(maps.Keys(wanted), portKey.compare) {
		check := wanted[key]
		p := s.open[key]
		if p == nil {
			p = s.newPort(key)
			s.open[key] = p
		}
		p.local.Store(int64(max(0, check.LocalEndpoints)))
		err := addrsErr
		if err == nil {
			err = p.listen(addrs, &s.running)
		}
		if err != nil {
			errs = append(errs, CheckError{Check: check, Err: err})
		}
	}
	return errs
}

// Close closes all ports, for good.
func (s *Services) Close() {
	defer s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.open {
		p.close()
	}
	clear(s.open)
	s.closed = true
}

func (k portKey) compare(o portKey) int {
	return cmp.Or(cmp.Compare(k.service.Namespace, o.service.Namespace), cmp.Compare(k.service.Name, o.service.Name), cmp.Compare(k.number, o.number))
}

func (s *Services) newPort(key portKey) *port {
	log := s.cfg.Log.WithFields(logrus.Fields{"service": key.service.String(), "healthCheckNodePort": key.number})
	p := &port{number: key.number, log: log, listeners: map[listenAddr]*listener{}}
	p.server = server.HTTP(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.answer(w, key.service, int(p.local.Load()))
	}), log)
	return p
}

// verdict is the body, with kube-proxy's keys.
type verdict struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

func (s *Services) answer(w http.ResponseWriter, name config.ServiceName, local int) {
	v := verdict{LocalEndpoints: local, ServiceProxyHealthy: s.cfg.Healthy()}
	v.Service.Namespace, v.Service.Name = name.Namespace, name.Name
	// Some load balancers give nodes shares in proportion.
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(local))
	code := http.StatusServiceUnavailable
	if local > 0 && v.ServiceProxyHealthy {
		code = http.StatusOK
	}
	reply(w, code, v)
}

// errNoAddress is that of a node without any address where ports are to be open.
var errNoAddress = errors.New("none of the node's addresses is one that NodePorts are open at: check --nodeport-addresses")
