package kubeproxy

import (
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// fields are all fields of the file, in its order.
var fields = []field{
	{
		path: "featureGates", flag: "feature-gates",
		get: func(c *Config) (string, bool) { return formatGates(c.FeatureGates), len(c.FeatureGates) > 0 },
		set: func(c *Config, s string) (err error) {
			c.FeatureGates, err = parseGates(s)
			return err
		},
	},
	text("clientConnection.kubeconfig", "kubeconfig", func(c *Config) *string { return &c.ClientConnection.Kubeconfig }),
	text("clientConnection.acceptContentTypes", "", func(c *Config) *string { return &c.ClientConnection.AcceptContentTypes }),
	text("clientConnection.contentType", "kube-api-content-type", func(c *Config) *string { return &c.ClientConnection.ContentType }),
	plain("clientConnection.qps", "kube-api-qps", func(c *Config) *float32 { return &c.ClientConnection.QPS },
		func(v float32) string { return strconv.FormatFloat(float64(v), 'g', -1, 32) },
		func(s string) (float32, error) {
			v, err := strconv.ParseFloat(s, 32)
			return float32(v), err
		}),
	plain("clientConnection.burst", "kube-api-burst", func(c *Config) *int32 { return &c.ClientConnection.Burst }, formatInt, parseInt),
	text("logging.format", "logging-format", func(c *Config) *string { return &c.Logging.Format }).first(FlagFirst),
	plain("logging.flushFrequency", "log-flush-frequency", func(c *Config) *metav1.Duration { return &c.Logging.FlushFrequency.Duration },
		formatDuration, parseDuration).first(FlagFirst),
	plain("logging.verbosity", "v", func(c *Config) *logsapi.VerbosityLevel { return &c.Logging.Verbosity },
		func(v logsapi.VerbosityLevel) string { return strconv.FormatUint(uint64(v), 10) },
		func(s string) (logsapi.VerbosityLevel, error) {
			v, err := strconv.ParseUint(s, 10, 32)
			return logsapi.VerbosityLevel(v), err
		}).first(FlagFirst),
	{
		path: "logging.vmodule", flag: "vmodule", precedence: FlagFirst,
		get: func(c *Config) (string, bool) {
			return logsapi.VModuleConfigurationPflag(&c.Logging.VModule).String(), len(c.Logging.VModule) > 0
		},
		set: func(c *Config, s string) error { return logsapi.VModuleConfigurationPflag(&c.Logging.VModule).Set(s) },
	},

	{
		path: "logging.options",
		get: func(c *Config) (string, bool) {
			t, j := &c.Logging.Options.Text, &c.Logging.Options.JSON
			return "given", t.SplitStream || j.SplitStream || t.InfoBufferSize.Value() != 0 || j.InfoBufferSize.Value() != 0
		},
	},
	text("hostnameOverride", "hostname-override", func(c *Config) *string { return &c.HostnameOverride }).first(FlagFirst),
	text("bindAddress", "bind-address", func(c *Config) *string { return &c.BindAddress }),
	text("healthzBindAddress", "healthz-bind-address", func(c *Config) *string { return &c.HealthzBindAddress }),
	text("metricsBindAddress", "metrics-bind-address", func(c *Config) *string { return &c.MetricsBindAddress }),
	truth("bindAddressHardFail", "bind-address-hard-fail", func(c *Config) *bool { return &c.BindAddressHardFail }),
	truth("enableProfiling", "profiling", func(c *Config) *bool { return &c.EnableProfiling }),
	text("showHiddenMetricsForVersion", "show-hidden-metrics-for-version", func(c *Config) *string { return &c.ShowHiddenMetricsForVersion }),

	text("mode", "proxy-mode", modeOf),
	number("iptables.masqueradeBit", "iptables-masquerade-bit", func(c *Config) **int32 { return &c.IPTables.MasqueradeBit }),
	truth("iptables.masqueradeAll", "masquerade-all", func(c *Config) *bool { return &c.IPTables.MasqueradeAll }),
	pointer("iptables.localhostNodePorts", "iptables-localhost-nodeports", func(c *Config) **bool { return &c.IPTables.LocalhostNodePorts },
		strconv.FormatBool, strconv.ParseBool),
	period("iptables.syncPeriod", "iptables-sync-period", func(c *Config) *metav1.Duration { return &c.IPTables.SyncPeriod }),
	period("iptables.minSyncPeriod", "iptables-min-sync-period", func(c *Config) *metav1.Duration { return &c.IPTables.MinSyncPeriod }),
	period("ipvs.syncPeriod", "ipvs-sync-period", func(c *Config) *metav1.Duration { return &c.IPVS.SyncPeriod }),
	period("ipvs.minSyncPeriod", "ipvs-min-sync-period", func(c *Config) *metav1.Duration { return &c.IPVS.MinSyncPeriod }),
	text("ipvs.scheduler", "ipvs-scheduler", func(c *Config) *string { return &c.IPVS.Scheduler }),
	list("ipvs.excludeCIDRs", "ipvs-exclude-cidrs", func(c *Config) *[]string { return &c.IPVS.ExcludeCIDRs }),
	truth("ipvs.strictARP", "ipvs-strict-arp", func(c *Config) *bool { return &c.IPVS.StrictARP }),
	period("ipvs.tcpTimeout", "ipvs-tcp-timeout", func(c *Config) *metav1.Duration { return &c.IPVS.TCPTimeout }),
	period("ipvs.tcpFinTimeout", "ipvs-tcpfin-timeout", func(c *Config) *metav1.Duration { return &c.IPVS.TCPFinTimeout }),
	period("ipvs.udpTimeout", "ipvs-udp-timeout", func(c *Config) *metav1.Duration { return &c.IPVS.UDPTimeout }),
	number("nftables.masqueradeBit", "", func(c *Config) **int32 { return &c.NFTables.MasqueradeBit }).or("14"),
	truth("nftables.masqueradeAll", "", func(c *Config) *bool { return &c.NFTables.MasqueradeAll }),
	period("nftables.syncPeriod", "", func(c *Config) *metav1.Duration { return &c.NFTables.SyncPeriod }).or("30s"),
	period("nftables.minSyncPeriod", "", func(c *Config) *metav1.Duration { return &c.NFTables.MinSyncPeriod }).or("1s"),
	text("winkernel.networkName", "", func(c *Config) *string { return &c.Winkernel.NetworkName }),
	text("winkernel.sourceVip", "", func(c *Config) *string { return &c.Winkernel.SourceVip }),
	truth("winkernel.enableDSR", "", func(c *Config) *bool { return &c.Winkernel.EnableDSR }),
	text("winkernel.rootHnsEndpointName", "", func(c *Config) *string { return &c.Winkernel.RootHnsEndpointName }),
	truth("winkernel.forwardHealthCheckVip", "", func(c *Config) *bool { return &c.Winkernel.ForwardHealthCheckVip }),

	text("detectLocalMode", "detect-local-mode", localModeOf),
	text("detectLocal.bridgeInterface", "pod-bridge-interface", func(c *Config) *string { return &c.DetectLocal.BridgeInterface }),
	text("detectLocal.interfaceNamePrefix", "pod-interface-name-prefix", func(c *Config) *string { return &c.DetectLocal.InterfaceNamePrefix }),
	text("clusterCIDR", "cluster-cidr", func(c *Config) *string { return &c.ClusterCIDR }),
	list("nodePortAddresses", "nodeport-addresses", func(c *Config) *[]string { return &c.NodePortAddresses }),

	number("oomScoreAdj", "oom-score-adj", func(c *Config) **int32 { return &c.OOMScoreAdj }),
	number("conntrack.maxPerCore", "conntrack-max-per-core", func(c *Config) **int32 { return &c.Conntrack.MaxPerCore }),
	number("conntrack.min", "conntrack-min", func(c *Config) **int32 { return &c.Conntrack.Min }),
	pointer("conntrack.tcpEstablishedTimeout", "conntrack-tcp-timeout-established",
		func(c *Config) **metav1.Duration { return &c.Conntrack.TCPEstablishedTimeout }, formatDuration, parseDuration),
	pointer("conntrack.tcpCloseWaitTimeout", "conntrack-tcp-timeout-close-wait",
		func(c *Config) **metav1.Duration { return &c.Conntrack.TCPCloseWaitTimeout }, formatDuration, parseDuration),
	truth("conntrack.tcpBeLiberal", "conntrack-tcp-be-liberal", func(c *Config) *bool { return &c.Conntrack.TCPBeLiberal }),
	period("conntrack.udpTimeout", "conntrack-udp-timeout", func(c *Config) *metav1.Duration { return &c.Conntrack.UDPTimeout }),
	period("conntrack.udpStreamTimeout", "conntrack-udp-timeout-stream", func(c *Config) *metav1.Duration { return &c.Conntrack.UDPStreamTimeout }),
	period("configSyncPeriod", "config-sync-period", func(c *Config) *metav1.Duration { return &c.ConfigSyncPeriod }),

	text("portRange", "proxy-port-range", func(c *Config) *string { return &c.PortRange }).first(FileFirst),
	truth("windowsRunAsService", "", func(c *Config) *bool { return &c.WindowsRunAsService }),
	{
		path: "udpIdleTimeout", flag: "udp-timeout", precedence: FileFirst,
		// Files of the versions that had the field no longer by default hold it as 0s.
		get: func(c *Config) (string, bool) {
			if c.UDPIdleTimeout == nil || c.UDPIdleTimeout.Duration == 0 {
				return "", false
			}
			return formatDuration(*c.UDPIdleTimeout), true
		},
		set: func(c *Config, s string) error {
			d, err := parseDuration(s)
			c.UDPIdleTimeout = &d
			return err
		},
	},
	text("resourceContainer", "", func(c *Config) *string { return &c.ResourceContainer }),
}
