package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRequestKnowsItsAnswer(t *testing.T) {
	var r udpRequest
	r.write(41)
	earlier := r.data
	r.write(42)
	changed := r.data
	changed[requestSize-1]++
	assert.Equal(t, answered, r.judge(r.data[:]))
	assert.Equal(t, late, r.judge(earlier[:]))
	assert.Equal(t, wrong, r.judge(changed[:]), "one byte is not as it was")
	assert.Equal(t, wrong, r.judge(r.data[:requestSize-1]), "shorter")
	assert.Equal(t, wrong, r.judge(append(r.data[:], 0)), "longer")
	assert.Equal(t, wrong, r.judge(nil))
	r.write(40)
	assert.Equal(t, wrong, r.judge(earlier[:]), "the answer to a request that was not made yet")
}

func TestFailuresAreShown(t *testing.T) {
	good := &udpSample{Rate: 1000, CPU: 5 * time.Microsecond}
	bad := &udpSample{Rate: 900, CPU: 6 * time.Microsecond, Faults: udpFaults{Lost: 2, Wrong: 1}}
	r := &udpReport{
		Loads: []*udpSeries{
			{System: "nginx stream", Clients: 1, Samples: []*udpSample{good, good}},
			{System: "redial", Clients: 1, Samples: []*udpSample{good, bad}},
		},
		OneShots: []*udpBursts{{System: "redial", Bursts: []*burst{
			{oneShotResult: oneShotResult{Clients: 10}, Before: footprint{FDs: 9}, During: footprint{FDs: 19}, After: footprint{FDs: 10}},
		}}},
	}
	assert.Contains(t, r.String(), "FAILED: 2 lost, 1 wrong")
	assert.Contains(t, r.String(), "FAILED: never")
	err := r.verdict()
	assert.ErrorContains(t, err, "redial with 1 clients: FAILED: 2 lost, 1 wrong")
	assert.ErrorContains(t, err, "redial, burst 1: 10 descriptors are left of 19, before there were 9")
	assert.NotContains(t, err.Error(), "nginx")
	r.Loads, r.OneShots = r.Loads[:1], nil
	r.Loads[0].Samples[0] = bad
	assert.Contains(t, r.String(), "FAILED: 2 lost, 1 wrong", "nginx's faults are shown")
	assert.NoError(t, r.verdict())
}

func TestStreamModule(t *testing.T) {
	for _, test := range []struct {
		about, load string
		ok          bool
	}{
		{"configure arguments: --modules-path=/usr/lib/nginx/modules --with-stream=dynamic --with-stream_ssl_module", "/usr/lib/nginx/modules/ngx_stream_module.so", true},
		{"configure arguments: --with-stream --with-stream_ssl_module", "", true},
		{"configure arguments: --with-http_ssl_module", "", false},
	} {
		load, ok := streamModule(test.about)
		assert.Equal(t, test.ok, ok, test.about)
		assert.Equal(t, test.load, load, test.about)
	}
	assert.Equal(t, "nginx/1.22.1", nginxVersion("nginx version: nginx/1.22.1\nbuilt with OpenSSL\n"))
}

func TestUDPOptionsAreBounded(t *testing.T) {
	good := udpOptions{clients: []int{1}}
	assert.NoError(t, good.validate())
	for _, change := range []func(*udpOptions){
		func(o *udpOptions) { o.clients = []int{1, 0} },
		func(o *udpOptions) { o.oneShots = -1 },
	} {
		bad := good
		change(&bad)
		assert.Error(t, bad.validate())
	}
}

func TestUDPOnASmallScale(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for sessions to end")
	}
	var r udpReport
	measureSmall(t, &r, "udp", "--seconds", "0.1", "--clients", "1,8", "--one-shots", "100", "--systems", "DNAT,redial")
	require.Len(t, r.Loads, 4)
	for _, s := range r.Loads {
		require.Len(t, s.Samples, 1)
		assert.Positive(t, s.Samples[0].Trips, s.System)
	}
	require.Len(t, r.OneShots, 1)
	assert.Len(t, r.OneShots[0].Bursts, 2)
}
