package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Figures are per connection or per GiB, medians over the rounds; what a load does not have stays empty.
func TestDataTable(t *testing.T) {
	short := &dataSeries{System: "redial", Load: "short", Samples: []*dataSample{
		{Elapsed: time.Second, CPU: 90 * time.Millisecond, Done: 1000, P50: time.Millisecond, P99: 2 * time.Millisecond},
		{Elapsed: 2 * time.Second, CPU: 200 * time.Millisecond, Done: 2000, P50: time.Millisecond, P99: 2 * time.Millisecond, Failed: 3},
		{Elapsed: time.Second, CPU: 110 * time.Millisecond, Done: 1000, P50: time.Millisecond, P99: 2 * time.Millisecond},
	}}
	bulk := &dataSeries{System: "nginx stream", Load: "bulk", Samples: []*dataSample{{Elapsed: time.Second, CPU: time.Second, Bytes: 1 << 30}}}
	idle := &dataSeries{System: "HAProxy", Load: "4000 idle connections", Samples: []*dataSample{{Elapsed: time.Second, Resident: 4000 << 11, FDs: 8000}}}
	lines := strings.Split(dataTable([]*dataSeries{short, bulk, idle}).String(), "\n")
	assert.Regexp(t, `^\| redial +\| 1000 \(1000-1000\) +\| 100\.0 \(90\.0-110\.0\) +\| 1000\.0 .*\| 2000\.0 .*\| +\| +\| +\| +\| 3 +\|$`, lines[2])
	assert.Regexp(t, `^\| nginx stream +\| +\| +\| +\| +\| 8\.59 .*\| 1000 .*\| +\| +\| 0 +\|$`, lines[3])
	assert.Regexp(t, `\| 2\.00 +\| 2\.00 +\| 0 +\|$`, lines[4])
}

func TestNginxHalfClose(t *testing.T) {
	assert.Contains(t, nginxConfig("", "/run", "tcp"), "proxy_half_close on;")
	assert.NotContains(t, nginxConfig("", "/run", "udp"), "proxy_half_close")
	assert.Contains(t, nginxConfig("", "/run", "udp"), "listen "+nodeIP+":5300 udp;")
}
