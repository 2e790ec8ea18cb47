package main

import (
	"net/netip"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"redial/iptables"
	"redial/proxy/intercept"
)

// steeringOptions say how traffic gets to the proxy.
type steeringOptions struct {
	interception   string
	proxyMode      string
	iptablesMode   string
	iptablesTarget string
	lockWait       time.Duration
	minSyncPeriod  time.Duration // 0: none
	syncPeriod     time.Duration
	mark           uint32
	portRange      string
	bindAddresses  []string
	serviceCIDR    []string

	bind4, bind6 netip.Addr          // from bindAddresses
	ports        intercept.PortRange // from portRange

	serviceRanges []netip.Prefix // from serviceCIDR
}

const (
	interceptAuto     = "auto"
	interceptIPTables = "iptables"
	interceptLocal    = "local"
	interceptNone     = "none"
)

// defaultPortRange is above the kernel's ephemeral ports (32768-60999) and the NodePorts (30000-32767).
const defaultPortRange = "61000-65535"

func defaultSteeringOptions() steeringOptions {
	return steeringOptions{
		interception:   interceptAuto,
		iptablesMode:   "auto",
		iptablesTarget: "auto",
		lockWait:       30 * time.Second,
		minSyncPeriod:  100 * time.Millisecond,
		syncPeriod:     5 * time.Second,
		// One bit that neither kube-proxy (0x4000, 0x8000), Calico (0xffff0000), Cilium (0x0f00), Tailscale (0xff0000)
		// nor Istio (0x539) uses.
		mark:      0x2000,
		portRange: defaultPortRange,
	}
}

func (o *steeringOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.interception, "interception", o.interception, "how traffic reaches the proxy: iptables (REDIRECT rules), local (the Services' addresses are made local and listened on; needs no netfilter), auto (iptables where the kernel has a nat table, else local), or none (only the proxy ports are listened on; needs no privileges)")
	f.StringSliceVar(&o.serviceCIDR, "service-cidr", o.serviceCIDR, "with --interception local: ranges that ClusterIPs are from, made local as a whole (default: those of the cluster's ServiceCIDR objects; without any, each ClusterIP for itself)")
	f.StringVar(&o.proxyMode, "proxy-mode", o.proxyMode, "kube-proxy's flag: userspace or empty, which is what redial is")
	o.addIPTablesFlags(f)
	f.StringVar(&o.iptablesTarget, "iptables-target", o.iptablesTarget, "redirect, dnat (to the node's own address: for interfaces without an address), or auto")
	f.DurationVar(&o.minSyncPeriod, "iptables-min-sync-period", o.minSyncPeriod, "least time between two writes of rules (kube-proxy: 1s); 0: every change is written at once")
	f.DurationVar(&o.syncPeriod, "iptables-sync-period", o.syncPeriod, "how often the rules are checked, and repaired if somebody else changed them (kube-proxy: 30s)")
	f.Uint32Var(&o.mark, "mark", o.mark, "mark (SO_MARK) on the proxy's own connections, by which the rules leave them alone")
	f.StringVar(&o.portRange, "proxy-port-range", o.portRange, "ports that the proxy listens on, one per Service port and family while there are some left, then TCP ports share: FIRST-LAST, FIRST+COUNT or PORT; nothing else on the node may listen there; empty or 0-0: the default")
	f.StringSliceVar(&o.bindAddresses, "proxy-bind-address", o.bindAddresses, "with --interception none: addresses to listen on, one per family (default 127.0.0.1,::1)")
}

func (o *steeringOptions) addIPTablesFlags(f *pflag.FlagSet) {
	f.StringVar(&o.iptablesMode, "iptables-mode", o.iptablesMode, "nft, legacy, or auto (where the node's rules are)")
	f.DurationVar(&o.lockWait, "iptables-lock-wait", o.lockWait, "how long to wait for the lock that iptables commands share")
}

func (o *options) validateSteering(c *complaints) {
	c.oneOf("interception", o.interception, interceptAuto, interceptIPTables, interceptLocal, interceptNone)
	switch o.proxyMode {
	case "", "userspace":
	case "iptables", "ipvs", "nftables", "kernelspace":
		if o.cleanup {
			break // whose rules are to go can be said with the flags that kube-proxy has
		}
		c.add("--proxy-mode %s: redial relays connections in userspace and nothing else: leave the mode out (in a file, mode: \"\") or say userspace, or run kube-proxy if you need %s", o.proxyMode, o.proxyMode)
	default:
		c.add("--proxy-mode %q: want userspace, or leave it out", o.proxyMode)
	}
	c.oneOf("iptables-mode", o.iptablesMode, "auto", "nft", "legacy")
	c.oneOf("iptables-target", o.iptablesTarget, "auto", "redirect", "dnat")
	c.positive("iptables-lock-wait", o.lockWait)
	c.notNegative("iptables-min-sync-period", o.minSyncPeriod)
	c.positive("iptables-sync-period", o.syncPeriod)
	if o.minSyncPeriod > o.syncPeriod {
		if o.given("iptables-sync-period") {
			c.add("--iptables-sync-period %s: must not be less than --iptables-min-sync-period %s", o.syncPeriod, o.minSyncPeriod)
		} else {
			o.syncPeriod = o.minSyncPeriod
		}
	}
	if o.interception != interceptNone && o.mark == 0 {
		c.add("--mark 0: a mark is needed to tell the proxy's own connections, or it would call itself")
	}
	switch o.portRange {
	case "", "0", "0-0": // kube-proxy's ways to say that it may choose
		o.portRange = defaultPortRange
	}
	o.serviceRanges = nil
	for _, s := range o.serviceCIDR {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil || p.Addr().Is4In6() {
			c.add("--service-cidr %q: want a CIDR such as 198.18.0.0/16", s)
			continue
		}
		if err := checkServiceRange(p); err != nil {
			c.add("--service-cidr %s: %w", p, err)
			continue
		}
		o.serviceRanges = append(o.serviceRanges, p.Masked())
	}
	var err error
	if o.ports, err = intercept.ParsePortRange(o.portRange); err != nil {
		c.add("--proxy-port-range: %w", err)
	}
	for _, s := range o.bindAddresses {
		a, err := netip.ParseAddr(s)
		switch {
		case err != nil:
			c.add("--proxy-bind-address: %w", err)
		case a.Unmap().Is4():
			o.bind4 = a.Unmap()
		default:
			o.bind6 = a
		}
	}
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
