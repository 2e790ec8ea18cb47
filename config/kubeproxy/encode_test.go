package kubeproxy

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every flag's value survives being written and read.
func TestEveryFieldRoundTrips(t *testing.T) {
	t.Parallel()
	values := map[string]string{
		"feature-gates": "A=true,B=false", "kube-api-qps": "7.5", "kube-api-burst": "9", "v": "4", "vmodule": "a=1,b=2",
		"iptables-masquerade-bit": "0", "oom-score-adj": "0", "conntrack-max-per-core": "0", "conntrack-min": "7",
		"bind-address-hard-fail": "true", "profiling": "true", "masquerade-all": "true", "ipvs-strict-arp": "true",
		"conntrack-tcp-be-liberal": "true", "iptables-localhost-nodeports": "false", "log-flush-frequency": "7s",
		"ipvs-exclude-cidrs": "198.18.0.0/16,2001:db8::/64", "nodeport-addresses": "primary,198.18.0.0/15",
		"iptables-sync-period": "7s", "iptables-min-sync-period": "7s", "ipvs-sync-period": "7s", "ipvs-min-sync-period": "7s",
		"ipvs-tcp-timeout": "7s", "ipvs-tcpfin-timeout": "7s", "ipvs-udp-timeout": "7s", "config-sync-period": "7s",
		"conntrack-tcp-timeout-established": "0s", "conntrack-tcp-timeout-close-wait": "7s",
		"conntrack-udp-timeout": "7s", "conntrack-udp-timeout-stream": "7s", "udp-timeout": "7s",
	}
	c := &Config{}
	var want []Setting
	for _, f := range fields {
		if f.flag == "" {
			continue
		}
		value, ok := values[f.flag]
		if !ok {
			value = "text"
		}
		kept, err := c.Set(f.flag, value)
		require.NoError(t, err, f.flag)
		assert.True(t, kept, f.flag)
		want = append(want, Setting{Field: f.path, Flag: f.flag, Value: value})
	}
	content, err := c.Encode()
	require.NoError(t, err)
	read, warnings, err := Decode(content)
	require.NoError(t, err, "%s", content)
	assert.Empty(t, warnings)
	assert.Equal(t, want, read.Settings())
}

func TestSetWhatCannotBeKept(t *testing.T) {
	t.Parallel()
	c := &Config{}
	kept, err := c.Set("metrics-bind-address", "")
	require.NoError(t, err)
	assert.False(t, kept, "empty means the default in a file, and none as a flag")
	kept, err = c.Set("manifests", "/etc")
	require.NoError(t, err)
	assert.False(t, kept)
	_, err = c.Set("conntrack-min", "many")
	assert.ErrorContains(t, err, "conntrack.min")
}

func TestEmptyConfigWritesNoOldFields(t *testing.T) {
	t.Parallel()
	content, err := (&Config{}).Encode()
	require.NoError(t, err)
	assert.Contains(t, string(content), "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n")
	assert.NotContains(t, string(content), "udpIdleTimeout", "kube-proxy no longer has it")
	assert.NotContains(t, string(content), "resourceContainer")
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(kubeadm))
	f.Add([]byte(header + "featureGates: A=true\nudpIdleTimeout: 250ms\nmode: userspace\nunknown: 1\n"))
	f.Add([]byte(header + "conntrack: {maxPerCore: 1e3, min: -1}\nlogging: {flushFrequency: 5, vmodule: [{filePattern: a, verbosity: 1}]}"))
	f.Add([]byte(`{"apiVersion": "componentconfig/v1alpha1", "kind": "KubeProxyConfiguration", "nodePortAddresses": [""]}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		c, _, err := Decode(content)
		if err != nil {
			return
		}
		written, err := c.Encode()
		require.NoError(t, err)
		again, warnings, err := Decode(written)
		require.NoError(t, err, "%s", written)
		assert.Empty(t, warnings, "%s", written)
		assert.Equal(t, c.Settings(), again.Settings())
		assert.Equal(t, c.Meaningless(), again.Meaningless())
	})
}
