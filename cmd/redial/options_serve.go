package main

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/spf13/pflag"
)

// serveOptions say where health and metrics are served.
type serveOptions struct {
	healthzBindAddress string
	metricsBindAddress string
	healthzPort        int32 // deprecated
	metricsPort        int32 // deprecated

	bindHardFail bool // a port that cannot be had ends the process; otherwise it is tried again
	profiling    bool // /debug/pprof beside the metrics
	// serviceMetrics are series for each Service.
	serviceMetrics bool

	// healthz and metrics are where to serve; the zero value: nowhere.
	healthz, metrics netip.AddrPort
}

const (
	healthzPort = 10256
	metricsPort = 10249
)

func defaultServeOptions() serveOptions {
	return serveOptions{
		healthzBindAddress: fmt.Sprintf("0.0.0.0:%d", healthzPort),
		metricsBindAddress: fmt.Sprintf("127.0.0.1:%d", metricsPort),
		healthzPort:        healthzPort,
		metricsPort:        metricsPort,
	}
}

func (o *serveOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.healthzBindAddress, "healthz-bind-address", o.healthzBindAddress, "where /healthz and /livez are served: ADDRESS or ADDRESS:PORT; empty: nowhere, which is the default with --manifests")
	f.StringVar(&o.metricsBindAddress, "metrics-bind-address", o.metricsBindAddress, "where /metrics, /proxyMode and others are served; empty: nowhere, which is the default with --manifests")
	f.BoolVar(&o.bindHardFail, "bind-address-hard-fail", o.bindHardFail, "end if one of these two addresses cannot be listened at, instead of trying again")
	f.BoolVar(&o.profiling, "profiling", o.profiling, "serve /debug/pprof beside the metrics")
	f.BoolVar(&o.serviceMetrics, "service-metrics", o.serviceMetrics, "14 series more for each Service, redial_service_*: for clusters of some hundred Services")
	f.Int32Var(&o.healthzPort, "healthz-port", o.healthzPort, "deprecated: the port of --healthz-bind-address, or 0 for no server")
	f.Int32Var(&o.metricsPort, "metrics-port", o.metricsPort, "deprecated: the port of --metrics-bind-address, or 0 for no server")
	_ = f.MarkHidden("healthz-port")
	_ = f.MarkHidden("metrics-port")
}

func (o *options) validateServe(c *complaints) {
	// Where the node is said to have an IPv6 address, kube-proxy's defaults are of that family, and they take IPv4 too.
	if o.nodeIP.Is6() || o.bindAddress == "::" {
		if !o.given("healthz-bind-address") {
			o.healthzBindAddress = fmt.Sprintf("[::]:%d", healthzPort)
		}
		if !o.given("metrics-bind-address") {
			o.metricsBindAddress = fmt.Sprintf("[::1]:%d", metricsPort)
		}
	}
	o.healthz = o.serveAt(c, "healthz", o.healthzBindAddress, o.healthzPort)
	o.metrics = o.serveAt(c, "metrics", o.metricsBindAddress, o.metricsPort)
}

// serveAt makes one address of the two flags of a server.
func (o *options) serveAt(c *complaints, server, address string, port int32) netip.AddrPort {
	whole, portOnly := server+"-bind-address", server+"-port"
	if address == "" || port == 0 || !o.cluster() && !o.given(whole) && !o.given(portOnly) {
		return netip.AddrPort{}
	}
	if port < 0 || port > 65535 {
		c.add("--%s %d: is not a port", portOnly, port)
		return netip.AddrPort{}
	}
	if a, err := netip.ParseAddr(address); err == nil {
		return netip.AddrPortFrom(a, uint16(port))
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil || at.Port() == 0 {
		c.add("--%s %q: want an address, or one with a port: 127.0.0.1:%s, [::1]:%[3]s", whole, address, strconv.Itoa(int(port)))
		return netip.AddrPort{}
	}
	if o.given(portOnly) && !o.given(whole) {
		at = netip.AddrPortFrom(at.Addr(), uint16(port))
	}
	return at
}
