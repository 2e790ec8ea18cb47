package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/config/kubeproxy"
)

const fileHeader = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// configFile writes a configuration file and returns the flag that names it.
func configFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.conf")
	require.NoError(t, os.WriteFile(path, []byte(fileHeader+content), 0o644))
	return "--config=" + path
}

func TestFileBecomesOptions(t *testing.T) {
	t.Parallel()
	o := mustParse(t, configFile(t, `
bindAddress: 2001:db8::9
clientConnection: {kubeconfig: /k, qps: 7.5, burst: 20, contentType: application/json}
clusterCIDR: 198.18.0.0/16,2001:db8::/64
configSyncPeriod: 1m
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, udpTimeout: 10s, tcpBeLiberal: true}
enableProfiling: true
featureGates: {AllowServiceExternalIPs: false}
healthzBindAddress: 198.18.0.9:1
hostnameOverride: Node-A
iptables: {localhostNodePorts: false, minSyncPeriod: 1s, syncPeriod: 30s, masqueradeAll: true}
ipvs: {syncPeriod: 30s, scheduler: rr}
nftables: {masqueradeAll: true}
logging: {verbosity: 4, format: json}
mode: userspace
nodePortAddresses: [primary, 198.18.0.0/15]
oomScoreAdj: -1
portRange: 61000+99
udpIdleTimeout: 2s
future: true
`))
	assert.Equal(t, "2001:db8::9", o.nodeIP.String())
	assert.Equal(t, "/k", o.kubeconfig)
	assert.InDelta(t, 7.5, o.apiQPS, 0)
	assert.EqualValues(t, 20, o.apiBurst)
	assert.Equal(t, "application/json", o.apiContentType)
	assert.Len(t, o.localPods.prefixes, 2)
	assert.Zero(t, o.conntrackMaxPerCore)
	assert.Zero(t, o.conntrackTCPEstablished)
	assert.Equal(t, time.Hour, o.conntrackTCPCloseWait)
	assert.Equal(t, 10*time.Second, o.conntrackUDP)
	assert.True(t, o.conntrackTCPBeLiberal)
	assert.True(t, o.profiling)
	assert.True(t, o.disableExternalIPs)
	assert.Equal(t, "198.18.0.9:1", o.healthz.String())
	assert.Equal(t, "[::1]:10249", o.metrics.String())
	assert.Equal(t, "node-a", o.nodeName)
	assert.False(t, o.localhostNodePorts)
	assert.Equal(t, time.Second, o.minSyncPeriod)
	assert.Equal(t, 30*time.Second, o.syncPeriod)
	assert.Equal(t, "debug", o.logLevel)
	assert.Equal(t, "json", o.logFormat)
	assert.Equal(t, []string{"primary", "198.18.0.0/15"}, o.nodePortAddresses)
	assert.EqualValues(t, -1, o.oomScoreAdj)
	assert.Equal(t, "61000-61099", o.ports.String())
	assert.Equal(t, 2*time.Second, o.udpTimeout)
	assert.Contains(t, o.said(logrus.WarnLevel), `unknown field \"future\"`)
	assert.Contains(t, o.said(logrus.InfoLevel), `fields="nftables.masqueradeAll,iptables.masqueradeAll,ipvs.scheduler,configSyncPeriod"`)
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	flags := []string{
		"--iptables-sync-period=9s", "--nodeport-addresses=198.18.0.0/16", "--kubeconfig=/flag", "--metrics-port=0",
		"--hostname-override=flag", "-v=0", "--logging-format=text", "--vmodule=a=1",
		"--udp-timeout=9s", "--proxy-port-range=62000-62099", "--drain-timeout=9s", "--master=http://198.18.0.1",
	}
	silent := mustParse(t, append(flags, configFile(t, ""))...)
	assert.Equal(t, 5*time.Second, silent.syncPeriod, "kube-proxy's flags do not count beside a file")
	assert.Empty(t, silent.nodePortAddresses)
	assert.Empty(t, silent.kubeconfig)
	assert.Equal(t, "127.0.0.1:10249", silent.metrics.String())
	assert.Contains(t, silent.said(logrus.WarnLevel), `flags="--kubeconfig,--nodeport-addresses,--iptables-sync-period,--metrics-port"`)
	assert.Equal(t, "flag", silent.nodeName)
	assert.Equal(t, 9*time.Second, silent.udpTimeout)
	assert.Equal(t, "62000-62099", silent.ports.String())
	assert.Equal(t, 9*time.Second, silent.drainTimeout, "the file has no field for it")
	assert.Equal(t, "http://198.18.0.1", silent.master)

	full := mustParse(t, append(flags, configFile(t, `
iptables: {syncPeriod: 7s}
nodePortAddresses: [primary]
clientConnection: {kubeconfig: /file}
hostnameOverride: file
logging: {verbosity: 4, format: json, vmodule: [{filePattern: b, verbosity: 1}]}
udpIdleTimeout: 7s
portRange: 63000-63099
`))...)
	assert.Equal(t, 7*time.Second, full.syncPeriod)
	assert.Equal(t, []string{"primary"}, full.nodePortAddresses)
	assert.Equal(t, "/file", full.kubeconfig)
	assert.Equal(t, "flag", full.nodeName, "the flag wins, so that one file does for all nodes")
	assert.Equal(t, "info", full.logLevel)
	assert.Equal(t, "text", full.logFormat)
	assert.Equal(t, 7*time.Second, full.udpTimeout)
	assert.Equal(t, "63000-63099", full.ports.String())
}

func TestWrongFile(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"mode: ipvs":                         "--proxy-mode ipvs: redial relays connections in userspace",
		"iptables: {syncPeriod: often}":      "iptables.syncPeriod",
		"nodePortAddresses: [node]":          `--nodeport-addresses "node"`,
		"healthzBindAddress: somewhere":      "--healthz-bind-address",
		"clientConnection: {kubeconfig: /k}": "two sources",
	} {
		args := []string{configFile(t, content)}
		if want == "two sources" {
			args = append(args, "--manifests=.")
		}
		_, err := parseOptions(t, args...)
		assert.ErrorContains(t, err, want, content)
	}
}

// What a started proxy takes for a file to start again with is what could be started with.
func TestUsable(t *testing.T) {
	t.Parallel()
	o := mustParse(t, configFile(t, "clusterCIDR: 198.18.0.0/16"), "--hostname-override=a", "--proxy-bind-address=127.0.0.1,::1",
		"--cluster-cidr=overruled", "--iptables-sync-period=9s")
	for content, want := range map[string]string{
		"mode: iptables":                                           "leave the mode out",
		"nodePortAddresses: [node]":                                `--nodeport-addresses "node"`,
		"clusterCIDR: 198.18.0.0":                                  `--cluster-cidr "198.18.0.0"`,
		"iptables: {syncPeriod: often}":                            "iptables.syncPeriod",
		"iptables: {syncPeriod: 1s, minSyncPeriod: 2s}":            "must not be less",
		"detectLocalMode: BridgeInterface":                         "needs --pod-bridge-interface",
		"{clusterCIDR: 198.18.0.0/17, mode: userspace}":            "apiVersion",
		"clusterCIDR: 198.18.0.0/17":                               "",
		"mode: userspace":                                          "",
		"nodePortAddresses: [primary]\niptables: {syncPeriod: 1m}": "",
	} {
		header := fileHeader
		if want == "apiVersion" {
			header = ""
		}
		if err := o.usable([]byte(header + content)); want == "" {
			assert.NoError(t, err, content)
		} else {
			assert.ErrorContains(t, err, want, content)
		}
	}
	assert.Equal(t, "198.18.0.0/16", o.clusterCIDR, "asking changes nothing")
}

// Each flag that a field of the file stands for exists, and takes what the file can hold.
func TestFileKnowsOnlyFlagsThatExist(t *testing.T) {
	t.Parallel()
	f := pflag.NewFlagSet("redial", pflag.ContinueOnError)
	defaultOptions().addFlags(f)
	for flag := range kubeproxy.Flags() {
		assert.NotNil(t, f.Lookup(flag), flag)
	}
}

func TestWriteConfig(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out")
	args := []string{
		"--bind-address=198.18.0.9", "--nodeport-addresses=primary,198.18.0.0/15", "--iptables-sync-period=7s", "--udp-timeout=7s",
		"--feature-gates=AllowServiceExternalIPs=false", "--conntrack-max-per-core=0", "--iptables-localhost-nodeports=false",
		"--kube-api-qps=7.5", "--vmodule=a=1", "-v=4", "--cluster-cidr=198.18.0.0/16", "--proxy-mode=userspace",
	}
	own := []string{"--drain-timeout=7s", "--metrics-bind-address="}
	out, err := runRedial(append(append([]string{"--write-config-to=" + path}, args...), own...)...)
	require.NoError(t, err, out)
	assert.Contains(t, out, `flags="[--drain-timeout --metrics-bind-address]"`)

	want, got := mustParse(t, args...), mustParse(t, "--config="+path)
	assert.Empty(t, got.said(logrus.WarnLevel))
	got.configFile = ""
	for _, o := range []*options{want, got} {
		o.flags, o.content, o.commandLine, o.notes = nil, nil, nil, nil
	}
	assert.Equal(t, want, got)

	content, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Contains(t, string(content), "udpIdleTimeout: 7s")
	out, err = runRedial("--write-config-to=" + path)
	require.NoError(t, err, out)
	content, err = os.ReadFile(path)
	require.NoError(t, err)
	assert.NotContains(t, string(content), "udpIdleTimeout", "kube-proxy does not know it")
	assert.Contains(t, string(content), "minSyncPeriod: 100ms")
}

// When its file says something else, the process ends without an error, to be started again.
func TestEndsWhenItsFileChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(t.TempDir(), "config.conf")
	writeFile(t, path, fileHeader)
	r := newInstance(t, dir, "--interception=none", "--config="+path)
	r.start()
	writeFile(t, path, fileHeader+"mode: iptables\n")
	r.await("a file that it could not start with to be refused", func(*status) bool { return strings.Contains(r.log.String(), "cannot be used") })
	writeFile(t, path, fileHeader+"mode: userspace\n")
	require.Error(t, r.wait(), "so that a supervisor starts it again")
	assert.Contains(t, r.log.String(), "the configuration file has changed")
}
