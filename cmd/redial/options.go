package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"redial/iptables"
	"redial/proxy/intercept"
)

// options are the command line. Names that kube-proxy has too mean the same there.
type options struct {
	manifests string

	interception   string
	iptablesMode   string
	iptablesTarget string
	lockWait       time.Duration
	minSyncPeriod  time.Duration
	syncPeriod     time.Duration
	mark           uint32
	portRange      string
	bindAddresses  []string
	bind4, bind6   netip.Addr          // from bindAddresses
	ports          intercept.PortRange // from portRange
	dialTimeout    time.Duration
	tryTimeout     time.Duration
	halfClose      time.Duration
	keepAlive      time.Duration
	userTimeout    time.Duration
	udpTimeout     time.Duration
	drainTimeout   time.Duration
	adminSocket    string
	logLevel       string
	logFormat      string
}

const (
	interceptIPTables = "iptables"
	interceptNone     = "none"
)

func defaultOptions() *options {
	return &options{
		interception:   interceptIPTables,
		iptablesMode:   "auto",
		iptablesTarget: "auto",
		lockWait:       30 * time.Second,
		minSyncPeriod:  100 * time.Millisecond,
		syncPeriod:     5 * time.Second,
		// One bit that neither kube-proxy (0x4000, 0x8000), Calico (0xffff0000), Cilium (0x0f00), Tailscale (0xff0000)
		// nor Istio (0x539) uses.
		mark: 0x2000,
		// Above the kernel's ephemeral ports (32768-60999) and the NodePorts (30000-32767).
		portRange:    "61000-65535",
		dialTimeout:  5 * time.Second,
		tryTimeout:   250 * time.Millisecond,
		halfClose:    time.Hour,
		keepAlive:    15 * time.Second,
		userTimeout:  2 * time.Minute,
		udpTimeout:   time.Minute,
		drainTimeout: 10 * time.Second,
		adminSocket:  defaultSocket(),
		logLevel:     "info",
		logFormat:    "text",
	}
}

// defaultSocket is in /run for root, and where the session's runtime files are for others.
func defaultSocket() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); os.Geteuid() != 0 && dir != "" {
		return filepath.Join(dir, "redial.sock")
	}
	return "/run/redial.sock"
}

func (o *options) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.manifests, "manifests", o.manifests, "directory of Service, EndpointSlice and Endpoints manifests (.yaml, .yml, .json), followed as it changes")
	f.StringVar(&o.interception, "interception", o.interception, "how traffic reaches the proxy: iptables (REDIRECT rules), or none (only the proxy ports are listened on; needs no privileges)")
	o.addIPTablesFlags(f)
	f.StringVar(&o.iptablesTarget, "iptables-target", o.iptablesTarget, "redirect, dnat (to the node's own address: for interfaces without an address), or auto")
	f.DurationVar(&o.minSyncPeriod, "iptables-min-sync-period", o.minSyncPeriod, "least time between two writes of rules")
	f.DurationVar(&o.syncPeriod, "iptables-sync-period", o.syncPeriod, "how often the rules are checked, and repaired if somebody else changed them")
	f.Uint32Var(&o.mark, "mark", o.mark, "mark (SO_MARK) on the proxy's own connections, by which the rules leave them alone")
	f.StringVar(&o.portRange, "proxy-port-range", o.portRange, "ports that the proxy listens on, one per Service port and family: FIRST-LAST, FIRST+COUNT or PORT; nothing else on the node may listen there")
	f.StringSliceVar(&o.bindAddresses, "proxy-bind-address", o.bindAddresses, "with --interception none: addresses to listen on, one per family (default 127.0.0.1,::1)")
	f.DurationVar(&o.dialTimeout, "dial-timeout", o.dialTimeout, "how long one client connection may look for a backend that answers, all attempts together")
	f.DurationVar(&o.tryTimeout, "dial-try-timeout", o.tryTimeout, "how long a backend may stay silent before another one is dialled")
	f.DurationVar(&o.halfClose, "half-close-timeout", o.halfClose, "ends a connection of which one direction has ended and the other has been idle for so long")
	f.DurationVar(&o.keepAlive, "tcp-keepalive", o.keepAlive, "TCP keep-alive interval, towards clients and backends")
	f.DurationVar(&o.userTimeout, "tcp-user-timeout", o.userTimeout, "how long sent bytes may stay unacknowledged before a connection is given up")
	f.DurationVar(&o.udpTimeout, "udp-timeout", o.udpTimeout, "ends a UDP session (a client address and its backend) that has been idle for so long, in both directions")
	f.DurationVar(&o.drainTimeout, "drain-timeout", o.drainTimeout, "how long live connections may go on after SIGTERM; a second signal exits at once")
	o.addSocketFlag(f)
	o.addLogFlags(f)
}

func (o *options) addIPTablesFlags(f *pflag.FlagSet) {
	f.StringVar(&o.iptablesMode, "iptables-mode", o.iptablesMode, "nft, legacy, or auto (where the node's rules are)")
	f.DurationVar(&o.lockWait, "iptables-lock-wait", o.lockWait, "how long to wait for the lock that iptables commands share")
}

func (o *options) addSocketFlag(f *pflag.FlagSet) {
	f.StringVar(&o.adminSocket, "admin-socket", o.adminSocket, "unix socket of the admin API, which redial status reads")
}

func (o *options) addLogFlags(f *pflag.FlagSet) {
	f.StringVar(&o.logLevel, "log-level", o.logLevel, "error, warn, info (changes of state) or debug (connections)")
	f.StringVar(&o.logFormat, "log-format", o.logFormat, "text or json")
}

// validate checks what the flags' own types do not, and parses the rest.
func (o *options) validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	oneOf := func(flag, value string, allowed ...string) {
		for _, a := range allowed {
			if value == a {
				return
			}
		}
		fail("--%s %q: want one of %s", flag, value, strings.Join(allowed, ", "))
	}
	oneOf("interception", o.interception, interceptIPTables, interceptNone)
	oneOf("iptables-mode", o.iptablesMode, "auto", "nft", "legacy")
	oneOf("iptables-target", o.iptablesTarget, "auto", "redirect", "dnat")
	oneOf("log-format", o.logFormat, "text", "json")
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"iptables-lock-wait", o.lockWait}, {"iptables-min-sync-period", o.minSyncPeriod}, {"iptables-sync-period", o.syncPeriod},
		{"dial-timeout", o.dialTimeout}, {"dial-try-timeout", o.tryTimeout}, {"half-close-timeout", o.halfClose},
		{"tcp-keepalive", o.keepAlive}, {"tcp-user-timeout", o.userTimeout},
		{"udp-timeout", o.udpTimeout},
	} {
		if d.value <= 0 {
			fail("--%s %s: must be more than 0", d.flag, d.value)
		}
	}
	if o.interception == interceptIPTables && o.mark == 0 {
		fail("--mark 0: the rules need a mark to let the proxy's own connections pass")
	}
	if o.tryTimeout > o.dialTimeout {
		fail("--dial-try-timeout %s: must not be more than --dial-timeout %s", o.tryTimeout, o.dialTimeout)
	}
	if o.drainTimeout < 0 {
		fail("--drain-timeout %s: must not be negative", o.drainTimeout)
	}
	var err error
	if o.ports, err = intercept.ParsePortRange(o.portRange); err != nil {
		fail("--proxy-port-range: %w", err)
	}
	for _, s := range o.bindAddresses {
		a, err := netip.ParseAddr(s)
		switch {
		case err != nil:
			fail("--proxy-bind-address: %w", err)
		case a.Unmap().Is4():
			o.bind4 = a.Unmap()
		default:
			o.bind6 = a
		}
	}
	return errors.Join(errs...)
}

func (o *options) logger() (*logrus.Entry, error) {
	log := logrus.New()
	level, err := logrus.ParseLevel(o.logLevel)
	if err != nil {
		return nil, fmt.Errorf("--log-level: %w", err)
	}
	log.SetLevel(level)
	if o.logFormat == "json" {
		log.SetFormatter(&logrus.JSONFormatter{})
	} else {
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true})
	}
	return logrus.NewEntry(log), nil
}

func (o *options) rules(log *logrus.Entry) (*iptables.Rules, error) {
	return iptables.New(iptables.Config{
		Mode:       iptables.Mode(o.iptablesMode),
		Target:     iptables.Target(o.iptablesTarget),
		Mark:       o.mark,
		ProxyPorts: o.ports,
		LockWait:   o.lockWait,
		Log:        log,
	})
}
