package kubeproxy

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// kubeadm's ConfigMap, of a version that still wrote udpIdleTimeout.
const kubeadm = header + `
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 198.18.0.0/16
configSyncPeriod: 0s
conntrack:
  max: null
  maxPerCore: null
  min: null
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ""
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: ""
mode: ""
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
resourceContainer: ""
showHiddenMetricsForVersion: ""
udpIdleTimeout: 0s
winkernel:
  enableDSR: false
  networkName: ""
  sourceVip: ""
`

func TestDecodeKubeadm(t *testing.T) {
	t.Parallel()
	c, warnings, err := Decode([]byte(kubeadm))
	require.NoError(t, err)
	assert.Equal(t, []string{`unknown field "conntrack.max"`}, warnings)
	assert.Empty(t, c.Meaningless())
	assert.Equal(t, []Setting{
		{"clientConnection.kubeconfig", "kubeconfig", "/var/lib/kube-proxy/kubeconfig.conf"},
		{"bindAddress", "bind-address", "0.0.0.0"},
		{"clusterCIDR", "cluster-cidr", "198.18.0.0/16"},
	}, c.Settings())
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ yaml, flag, value string }{
		{"featureGates: {B: false, A: true}", "feature-gates", "A=true,B=false"},
		{`featureGates: "A=true, B=false"`, "feature-gates", "A=true,B=false"},
		{"clientConnection: {qps: 7.5}", "kube-api-qps", "7.5"},
		{"clientConnection: {burst: 20}", "kube-api-burst", "20"},
		{"logging: {verbosity: 4}", "v", "4"},
		{"logging: {format: json}", "logging-format", "json"},
		{"logging: {flushFrequency: 5s}", "log-flush-frequency", "5s"},
		{"logging: {flushFrequency: 5000000000}", "log-flush-frequency", "5s"},
		{"logging: {vmodule: [{filePattern: proxier, verbosity: 9}]}", "vmodule", "proxier=9"},
		{"mode: userspace", "proxy-mode", "userspace"},
		{"iptables: {localhostNodePorts: false}", "iptables-localhost-nodeports", "false"},
		{"iptables: {minSyncPeriod: 1s}", "iptables-min-sync-period", "1s"},
		{"nodePortAddresses: [primary, 198.18.0.0/15]", "nodeport-addresses", "primary,198.18.0.0/15"},
		{"oomScoreAdj: 0", "oom-score-adj", "0"},
		{"conntrack: {maxPerCore: 0}", "conntrack-max-per-core", "0"},
		{"conntrack: {tcpEstablishedTimeout: 0s}", "conntrack-tcp-timeout-established", "0s"},
		{"udpIdleTimeout: 250ms", "udp-timeout", "250ms"},
		{"portRange: 61000+99", "proxy-port-range", "61000+99"},
	} {
		c, warnings, err := Decode([]byte(header + test.yaml))
		require.NoError(t, err, test.yaml)
		assert.Empty(t, warnings, test.yaml)
		if s := c.Settings(); assert.Len(t, s, 1, test.yaml) {
			assert.Equal(t, test.flag, s[0].Flag, test.yaml)
			assert.Equal(t, test.value, s[0].Value, test.yaml)
		}
	}
}

func TestDecodeLenient(t *testing.T) {
	t.Parallel()
	c, warnings, err := Decode([]byte(header + "mode: userspace\nfuture: {a: 1}\nMode: ipvs\nresourceContainer: /kube-proxy\n" +
		"iptables: {fancy: true}\nnftables: {syncPeriod: 30s, minSyncPeriod: 2s}\nlogging: {options: {text: {infoBufferSize: 1k}}}\n"))
	require.NoError(t, err)
	assert.Equal(t, []string{`unknown field "Mode"`, `unknown field "future"`, `unknown field "iptables.fancy"`}, warnings)
	assert.Equal(t, []string{"logging.options", "nftables.minSyncPeriod", "resourceContainer"}, c.Meaningless())
	assert.Equal(t, []Setting{{"mode", "proxy-mode", "userspace"}}, c.Settings())

	c, warnings, err = Decode([]byte("---\n# a comment\n---\n" + header + "mode: a\nmode: b\n---\nkind: Other\n"))
	require.NoError(t, err)
	assert.Equal(t, "b", string(c.Mode))
	require.Len(t, warnings, 2)
	assert.Contains(t, warnings[0], `"mode" already set`)
	assert.Contains(t, warnings[1], "only the first one counts")
}

func TestDecodeErrors(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"":                             "apiVersion missing, kind missing: want apiVersion kubeproxy.config.k8s.io/v1alpha1",
		"kind: KubeProxyConfiguration": "apiVersion missing",
		"apiVersion: v1\nkind: Pod":    `apiVersion "v1", kind "Pod"`,
		"apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration": `"kubeproxy.config.k8s.io/v1beta1"`,
		"- a list":                                 "reading YAML",
		"a: [":                                     "reading YAML",
		header + "iptables: {syncPeriod: 30}":      "iptables.syncPeriod: ",
		header + "conntrack: {min: many}":          "conntrack.min: ",
		header + "nodePortAddresses: primary":      "nodePortAddresses: ",
		header + "mode: [a]\noomScoreAdj: x":       "mode: ",
		header + "featureGates: A=yes":             `featureGates: "A=yes": want NAME=true`,
		header + "logging: {flushFrequency: soon}": "logging.flushFrequency: ",
	} {
		_, _, err := Decode([]byte(content))
		assert.ErrorContains(t, err, want, content)
	}
	_, _, err := Decode([]byte("apiVersion: componentconfig/v1alpha1\nkind: KubeProxyConfiguration"))
	assert.NoError(t, err, "the group's old name")
}

// A field of the API's type that fields does not know would be lost without a word.
func TestFieldsAreComplete(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, f := range fields {
		assert.False(t, known[f.path], f.path)
		known[f.path] = true
	}
	assert.Equal(t, []string{"kind", "apiVersion"}, unknown(reflect.TypeFor[Config](), "", known))
}

// unknown returns the paths of the fields of t that are not known, nor part of one that is.
func unknown(t reflect.Type, prefix string, known map[string]bool) []string {
	var paths []string
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch path := prefix + name; {
		case known[path]:
		case f.Anonymous:
			paths = append(paths, unknown(f.Type, prefix, known)...)
		case f.Type.Kind() == reflect.Struct:
			paths = append(paths, unknown(f.Type, path+".", known)...)
		default:
			paths = append(paths, path)
		}
	}
	return paths
}
