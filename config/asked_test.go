package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// What is listed is what was asked for, and asking for it again gives the same settings.
func TestAsked(t *testing.T) {
	t.Parallel()
	assert.Nil(t, (*Settings)(nil).Asked())
	for _, want := range [][]string{
		{"scheduler=wrr", "weights=10.1.0.1=0,web-0=3", "dial-timeout=1s", "hedge=20ms", "max-retries=3", "proxy-protocol=v2", "idle-timeout=5m0s",
			"udp-timeout=30s", "max-connection-age=1h0m0s", "drain-timeout=10s", "max-connections=100", "max-connections-per-backend=10", "max-queue=0", "queue-timeout=2s"},
		{"hedge=off", "max-retries=0", "idle-timeout=off", "max-connection-age=off", "drain-timeout=0", "max-connections=0"},
	} {
		all := map[string]string{}
		for _, a := range want {
			name, value, _ := strings.Cut(a, "=")
			all[annotationPrefix+name] = value
		}
		var p problems
		s := settings(all, &p)
		assert.Empty(t, p)
		assert.Equal(t, want, s.Asked())
	}
}
