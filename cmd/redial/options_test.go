package main

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// parseOptions is what the root command does with its arguments before it acts.
func parseOptions(t *testing.T, args ...string) (*options, error) {
	t.Helper()
	o := defaultOptions()
	f := pflag.NewFlagSet("redial", pflag.ContinueOnError)
	o.addFlags(f)
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	require.Empty(t, f.Args())
	if err := o.load(); err != nil {
		return nil, err
	}
	return o, o.validate()
}

func mustParse(t *testing.T, args ...string) *options {
	t.Helper()
	o, err := parseOptions(t, args...)
	require.NoError(t, err, args)
	return o
}

// said are the notes at a level, each with its fields.
func (o *options) said(level logrus.Level) string {
	var b strings.Builder
	for _, n := range o.notes {
		if n.level == level {
			e, _ := (&logrus.Entry{Logger: logrus.New(), Data: n.fields, Message: n.message}).String()
			b.WriteString(e)
		}
	}
	return b.String()
}

// Every flag that kube-proxy has in 1.37 or had when it had the mode userspace, by the value it takes here.
var kubeProxyFlags = strings.Fields(`
	--bind-address=198.18.0.1 --bind-address-hard-fail --boot-id-file=/b --cleanup --cluster-cidr=198.18.0.0/16,2001:db8::/64 --config-sync-period=1m
	--conntrack-max-per-core=1 --conntrack-min=1 --conntrack-tcp-be-liberal --conntrack-tcp-timeout-close-wait=1s
	--conntrack-tcp-timeout-established=1s --conntrack-udp-timeout=1s --conntrack-udp-timeout-stream=1s
	--detect-local-mode=ClusterCIDR --feature-gates=A=true,B=false --healthz-bind-address=0.0.0.0:10256 --healthz-port=1
	--hostname-override=n --init-only --iptables-localhost-nodeports=false --iptables-masquerade-bit=14
	--iptables-min-sync-period=1s --iptables-sync-period=30s --ipvs-exclude-cidrs=198.18.0.0/16 --ipvs-min-sync-period=1s
	--ipvs-scheduler=rr --ipvs-strict-arp --ipvs-sync-period=30s --ipvs-tcp-timeout=1s --ipvs-tcpfin-timeout=1s
	--ipvs-udp-timeout=1s --kube-api-burst=10 --kube-api-content-type=application/json --kube-api-qps=5 --kubeconfig=/k --machine-id-file=/m
	--log-flush-frequency=5s --logging-format=text --log-text-split-stream --log-text-info-buffer-size=1k
	--log-json-split-stream --log-json-info-buffer-size=1k --masquerade-all --master=http://198.18.0.1:8080
	--metrics-bind-address=127.0.0.1:10249 --metrics-port=1 --nodeport-addresses=primary,localhost,198.18.0.0/15
	--oom-score-adj=-999 --pod-bridge-interface=cni0 --pod-interface-name-prefix=veth --profiling --proxy-mode=userspace
	--show-hidden-metrics-for-version=1.36 --v=2 -v=2 --vmodule=a=1 --write-config-to=/w

	--proxy-port-range=0-0 --udp-timeout=250ms --resource-container=/kube-proxy --conntrack-max=0 --cleanup-iptables
	--cleanup-ipvs=true
	--logtostderr=true --alsologtostderr --log-dir=/var/log --log_dir=/var/log --log-file=/f --log_file=/f
	--log_file_max_size=1 --log-backtrace-at=:0 --log_backtrace_at=:0 --stderrthreshold=2 --skip_headers --skip_log_headers
	--add_dir_header --one_output --alsologtostderrthreshold=1 --legacy_stderr_threshold_behavior
`)

func TestEveryFlagOfKubeProxyIsAccepted(t *testing.T) {
	t.Parallel()
	for _, arg := range kubeProxyFlags {
		_, err := parseOptions(t, arg)
		assert.NoError(t, err, arg)
	}
	_, err := parseOptions(t, kubeProxyFlags...)
	assert.NoError(t, err, "all at once")
	_, err = parseOptions(t, "--cleanup", "--proxy-mode=iptables", "--kubeconfig=/k")
	assert.NoError(t, err, "rules are removed whatever mode is to come")
	_, err = parseOptions(t, "--bind-address=")
	assert.NoError(t, err, "as good as left out")
	for arg, want := range map[string]string{
		"--no-such-flag":                 "unknown flag",
		"--ipvs-sync-period=soon":        "invalid argument",
		"--masquerade-all=perhaps":       "invalid argument",
		"--iptables-masquerade-bit=many": "invalid argument",
	} {
		_, err := parseOptions(t, arg)
		assert.ErrorContains(t, err, want, arg)
	}
}

// The units of the years when the userspace mode was the only one put their command line together like this.
func TestOldSystemdUnit(t *testing.T) {
	t.Parallel()
	environment := map[string]string{
		"KUBE_LOGTOSTDERR": "--logtostderr=true", "KUBE_LOG_LEVEL": "--v=0", "KUBE_MASTER": "--master=http://198.18.0.1:8080",
		"KUBE_PROXY_ARGS": "--proxy-mode=userspace",
	}
	line := os.Expand("kube-proxy $KUBE_LOGTOSTDERR $KUBE_LOG_LEVEL $KUBE_MASTER $KUBE_PROXY_ARGS", func(name string) string { return environment[name] })
	args := strings.Fields(line)[1:]
	o := mustParse(t, args...)
	assert.NoError(t, o.checkSource())
	assert.True(t, o.cluster())
	assert.Equal(t, "http://198.18.0.1:8080", o.master)
	assert.Equal(t, "info", o.logLevel)
	assert.Equal(t, defaultPortRange, o.ports.String())
	assert.Equal(t, time.Minute, o.udpTimeout)
	assert.Equal(t, "0.0.0.0:10256", o.healthz.String())
	assert.Contains(t, o.said(logrus.InfoLevel), "flags=--logtostderr")
	assert.Empty(t, o.said(logrus.WarnLevel))
}

func TestIgnoredFlagsAreNamedOnce(t *testing.T) {
	t.Parallel()
	o := mustParse(t, "--masquerade-all", "--ipvs-scheduler=rr", "--log_dir=/x", "--feature-gates=A=true", "--feature-gates=B=false,AllowServiceExternalIPs=true")
	require.Len(t, o.notes, 2)
	assert.Contains(t, o.said(logrus.InfoLevel), "flags=\"--ipvs-scheduler,--log-dir,--masquerade-all\"")
	assert.Contains(t, o.said(logrus.InfoLevel), "A=true,B=false")
	assert.Empty(t, mustParse(t).notes)
}

func TestFlagsBecomeOptions(t *testing.T) {
	t.Parallel()
	hostname, err := os.Hostname()
	require.NoError(t, err)
	for args, check := range map[string]func(*testing.T, *options){
		"": func(t *testing.T, o *options) {
			assert.Equal(t, strings.ToLower(hostname), o.nodeName)
			assert.False(t, o.nodeIP.IsValid())
			assert.Equal(t, "0.0.0.0:10256", o.healthz.String())
			assert.Equal(t, "127.0.0.1:10249", o.metrics.String())
			assert.Equal(t, 100*time.Millisecond, o.minSyncPeriod)
			assert.Equal(t, 5*time.Second, o.syncPeriod)
			assert.True(t, o.localhostNodePorts)
			assert.Empty(t, o.localPods)
		},
		"--manifests .": func(t *testing.T, o *options) {
			assert.Empty(t, o.nodeName)
			assert.False(t, o.healthz.IsValid())
			assert.False(t, o.metrics.IsValid())
			assert.Empty(t, o.conntrackSettings(1))
		},
		"--manifests . --hostname-override a --metrics-bind-address 127.0.0.1 --healthz-port 7": func(t *testing.T, o *options) {
			assert.Equal(t, "a", o.nodeName)
			assert.Equal(t, "127.0.0.1:10249", o.metrics.String())
			assert.Equal(t, "0.0.0.0:7", o.healthz.String())
		},
		"--hostname-override Node-A": func(t *testing.T, o *options) { assert.Equal(t, "node-a", o.nodeName) },
		"--node_name b":              func(t *testing.T, o *options) { assert.Equal(t, "b", o.nodeName) },
		"--proxy-mode userspace --proxy-port-range 61000+99": func(t *testing.T, o *options) {
			assert.Equal(t, "61000-61099", o.ports.String())
		},
		"--proxy-port-range=":        func(t *testing.T, o *options) { assert.Equal(t, defaultPortRange, o.ports.String()) },
		"--proxy-port-range 0-0":     func(t *testing.T, o *options) { assert.Equal(t, defaultPortRange, o.ports.String()) },
		"--proxy-port-range 7":       func(t *testing.T, o *options) { assert.Equal(t, "7-7", o.ports.String()) },
		"--iptables-sync-period 30s": func(t *testing.T, o *options) { assert.Equal(t, 30*time.Second, o.syncPeriod) },
		"--iptables-min-sync-period 10s": func(t *testing.T, o *options) {
			assert.Equal(t, 10*time.Second, o.minSyncPeriod)
			assert.Equal(t, 10*time.Second, o.syncPeriod, "with kube-proxy's default, the two would fit")
		},
		"--iptables-min-sync-period 0": func(t *testing.T, o *options) { assert.Zero(t, o.minSyncPeriod) },
		"--udp-timeout 250ms": func(t *testing.T, o *options) {
			assert.Equal(t, 250*time.Millisecond, o.udpTimeout)
			assert.Contains(t, o.said(logrus.WarnLevel), "--udp-timeout")
		},
		"--bind-address 198.18.0.9": func(t *testing.T, o *options) { assert.Equal(t, "198.18.0.9", o.nodeIP.String()) },
		"--bind-address ::": func(t *testing.T, o *options) {
			assert.False(t, o.nodeIP.IsValid())
			assert.Equal(t, "[::]:10256", o.healthz.String())
			assert.Equal(t, "[::1]:10249", o.metrics.String())
		},
		"--bind-address 2001:db8::9 --healthz-bind-address 198.18.0.9:1": func(t *testing.T, o *options) {
			assert.Equal(t, "2001:db8::9", o.nodeIP.String())
			assert.Equal(t, "198.18.0.9:1", o.healthz.String())
			assert.Equal(t, "[::1]:10249", o.metrics.String())
		},
		"--healthz-bind-address= --metrics-port 0": func(t *testing.T, o *options) {
			assert.False(t, o.healthz.IsValid())
			assert.False(t, o.metrics.IsValid())
		},
		"--healthz-bind-address ::1 --healthz-port 9": func(t *testing.T, o *options) { assert.Equal(t, "[::1]:9", o.healthz.String()) },
		"--nodeport-addresses primary,198.18.0.0/15": func(t *testing.T, o *options) {
			assert.Equal(t, []string{"primary", "198.18.0.0/15"}, o.nodePortAddresses)
		},
		"--cluster-cidr 198.18.7.0/16,2001:db8::/64": func(t *testing.T, o *options) {
			assert.Equal(t, []netip.Prefix{netip.MustParsePrefix("198.18.0.0/16"), netip.MustParsePrefix("2001:db8::/64")}, o.localPods.prefixes)
		},
		"--cluster-cidr 198.18.0.0/16 --detect-local-mode NodeCIDR": func(t *testing.T, o *options) {
			assert.Empty(t, o.localPods.prefixes)
			assert.True(t, o.localPods.nodeCIDR)
		},
		"--detect-local-mode BridgeInterface --pod-bridge-interface cni0": func(t *testing.T, o *options) {
			assert.Equal(t, []string{"cni0"}, o.localPods.interfaces)
		},
		"--detect-local-mode InterfaceNamePrefix --pod-interface-name-prefix veth": func(t *testing.T, o *options) {
			assert.Equal(t, []string{"veth+"}, o.localPods.interfaces)
		},
		"--detect-local-mode ClusterCIDR": func(t *testing.T, o *options) { assert.Contains(t, o.said(logrus.WarnLevel), "--cluster-cidr") },
		"--feature-gates AllowServiceExternalIPs=false": func(t *testing.T, o *options) {
			assert.True(t, o.disableExternalIPs)
			assert.Empty(t, o.notes)
		},
		"--feature-gates AllowServiceExternalIPs=true --disable-external-ips": func(t *testing.T, o *options) { assert.True(t, o.disableExternalIPs) },
		"-v 4":                   func(t *testing.T, o *options) { assert.Equal(t, "debug", o.logLevel) },
		"-v=3":                   func(t *testing.T, o *options) { assert.Equal(t, "info", o.logLevel) },
		"--v=9 --log-level=warn": func(t *testing.T, o *options) { assert.Equal(t, "warn", o.logLevel) },
		"--logging-format json":  func(t *testing.T, o *options) { assert.Equal(t, "json", o.logFormat) },
		"--logging-format json --log-format text": func(t *testing.T, o *options) { assert.Equal(t, "text", o.logFormat) },
		"--endpoint-source endpoints --service-proxy-name x --kube-api-qps 50 --kube-api-burst 100 --config-sync-period 1m": func(t *testing.T, o *options) {
			assert.Equal(t, endpointSourceEndpoints, o.endpointSource)
			assert.Equal(t, "x", o.serviceProxyName)
			assert.InDelta(t, 50, o.apiQPS, 0)
			assert.EqualValues(t, 100, o.apiBurst)
		},
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			check(t, mustParse(t, strings.Fields(args)...))
		})
	}
}

func TestWrongFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--proxy-mode iptables":                                   "--proxy-mode iptables: redial relays connections in userspace and nothing else: leave the mode out",
		"--proxy-mode ipvs":                                       "run kube-proxy if you need ipvs",
		"--proxy-mode nftables":                                   "run kube-proxy if you need nftables",
		"--proxy-mode kernelspace":                                "run kube-proxy if you need kernelspace",
		"--proxy-mode magic":                                      `--proxy-mode "magic": want userspace`,
		"--manifests . --kubeconfig /k":                           "two sources of Services",
		"--manifests . --master http://198.18.0.1":                "two sources of Services",
		"--bind-address 127.0.0.1":                                "loopback",
		"--bind-address ::1":                                      "loopback",
		"--bind-address node":                                     "want an IP address",
		"--healthz-bind-address node:1":                           "--healthz-bind-address",
		"--metrics-bind-address 198.18.0.1:0":                     "--metrics-bind-address",
		"--metrics-port 70000":                                    "--metrics-port 70000: is not a port",
		"--nodeport-addresses primary,198.18.0.1":                 `--nodeport-addresses "198.18.0.1": want a CIDR`,
		"--cluster-cidr 198.18.0.0":                               `--cluster-cidr "198.18.0.0"`,
		"--detect-local-mode Guess":                               "want one of ClusterCIDR, NodeCIDR",
		"--detect-local-mode BridgeInterface":                     "needs --pod-bridge-interface",
		"--detect-local-mode InterfaceNamePrefix":                 "needs --pod-interface-name-prefix",
		"--hostname-override=\u00a0":                              "is empty",
		"--iptables-min-sync-period 9s --iptables-sync-period 8s": "must not be less than --iptables-min-sync-period 9s",
		"--udp-timeout 0":                                         "--udp-timeout 0s: must be more than 0",
		"--endpoint-source both":                                  "want one of auto, endpointslices, endpoints",
		"--oom-score-adj 1001":                                    "want -1000 to 1000",
		"--feature-gates A":                                       `--feature-gates "A": want NAME=true`,
		"--kube-api-burst -1":                                     "must not be negative",
		"--conntrack-max-per-core -1":                             "must not be negative",
		"--conntrack-min -1":                                      "must not be negative",
		"--conntrack-tcp-timeout-established -1s":                 "must not be negative",
		"--logging-format xml":                                    "want one of text, json",
		"--config /does/not/exist":                                "--config: open /does/not/exist",
	} {
		_, err := parseOptions(t, strings.Split(args, " ")...)
		assert.ErrorContains(t, err, want, args)
	}
}

func TestNoSourceTellsTheWays(t *testing.T) {
	t.Parallel()
	err := mustParse(t).checkSource()
	for _, way := range []string{"--manifests DIR", "--kubeconfig FILE", "--master URL", "Pod with a service account"} {
		assert.ErrorContains(t, err, way)
	}
	for _, args := range []string{"--manifests=.", "--kubeconfig=/k", "--master=http://198.18.0.1"} {
		assert.NoError(t, mustParse(t, args).checkSource(), args)
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	out, err := runRedial("--help")
	require.NoError(t, err, out)
	for _, g := range defaultOptions().groups() {
		assert.Contains(t, out, "\n"+g.title+":\n")
	}
	assert.Contains(t, out, "--udp-timeout duration")
	assert.NotContains(t, out, "--ipvs-scheduler", "it means nothing here")
	assert.NotContains(t, out, "--healthz-port", "deprecated")
	out, err = runRedial("status", "--help")
	require.NoError(t, err, out)
	assert.NotContains(t, out, "--udp-timeout")
}
