package main

import (
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMain lets the test binary be redial-bench: it runs itself on the hosts of its network.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		main()
		return
	}
	os.Exit(m.Run())
}

// What is known of the faults must come out: without another try each costs clients, with redial none that could be saved.
func TestFailoverOnASmallScale(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	dir := t.TempDir()
	program, results := filepath.Join(dir, "redial"), filepath.Join(dir, "results.json")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, "../redial").CombinedOutput()
	require.NoError(t, err, "%s", out)
	self, err := os.Executable()
	require.NoError(t, err)
	out, err = exec.Command(self, "failover", "--redial", program, "--systems", "DNAT,redial", "--rounds", "1", "--seconds", "1",
		"--rate", "200", "--ten-rate", "200", "--wave", "60", "--warm", "100ms", "--patience", "4s", "--json", results,
		"--faults", "refuses,resets,vanishes,all at once").CombinedOutput()
	if strings.Contains(string(out), "making namespaces") {
		t.Skip(string(out))
	}
	require.NoError(t, err, "%s", out)
	b, err := os.ReadFile(results)
	require.NoError(t, err)
	var r failoverReport
	require.NoError(t, json.Unmarshal(b, &r))

	require.Len(t, r.Series, 2*(3+2+2+4), "two systems under each fault and with all well, and two waves")
	of := func(scene, fault, system string, wave int) failures {
		s := r.find(scene, fault, system, wave)
		require.NotNil(t, s, "%s: %s, %s", scene, fault, system)
		require.Len(t, s.Samples, 1)
		want := 200
		switch wave {
		case 1:
			want = 60
		case 2:
			want = 60 * laterWaves
		}
		assert.Equal(t, want, s.Samples[0].Asked)
		assert.Zero(t, s.Samples[0].Failures.Wrong)
		return s.Samples[0].Failures
	}
	for _, system := range []string{"kernel DNAT", "redial"} {
		for _, scene := range []string{"three backends", "three backends that speak first", "ten backends"} {
			assert.Zero(t, of(scene, allWell, system, 0), "%s, %s: what one fault did is undone before the next", scene, system)
		}
		assert.Zero(t, of("all at once, three backends", allWell, system, 2))
	}
	assert.Zero(t, of("three backends", "one refuses", "redial", 0))
	assert.Zero(t, of("all at once, three backends", "one is silent", "redial", 1))

	refused := of("three backends", "one refuses", "kernel DNAT", 0)
	assert.Equal(t, failures{Refused: refused.Refused}, refused)
	assert.NotZero(t, refused.Refused)
	for _, scene := range []string{"three backends", "three backends that speak first"} {
		cut := of(scene, "one resets what it has accepted", "kernel DNAT", 0)
		assert.Equal(t, failures{Cut: cut.Cut}, cut, scene)
		assert.NotZero(t, cut.Cut, scene)
	}
	assert.NotZero(t, of("ten backends", "one vanishes", "kernel DNAT", 0).sum())
	silent := of("all at once, three backends", "one is silent", "kernel DNAT", 1)
	assert.Equal(t, failures{TimedOut: silent.TimedOut}, silent)
	assert.NotZero(t, silent.TimedOut)
}

func TestClientsTellHowTheyFailed(t *testing.T) {
	answer := func(change func([]byte) []byte) func(*net.TCPConn) {
		return func(c *net.TCPConn) {
			b := make([]byte, requestSize)
			if n, _ := c.Read(b); n == requestSize {
				c.Write(change(b))
				c.Read(b) // until the client closes
			}
		}
	}
	whole := func(b []byte) []byte { return b }
	greet := func(number uint64) func(*net.TCPConn) {
		return func(c *net.TCPConn) {
			g := requestOf(number)
			c.Write(g[:])
			answer(whole)(c)
		}
	}
	const n = 3
	for _, test := range []struct {
		name    string
		serve   func(*net.TCPConn) // nil: nobody listens
		greeted bool
		// For those that wait in vain; all others have as long as the machine needs.
		patience time.Duration
		want     failures
	}{
		{"answered", answer(whole), false, time.Minute, failures{}},
		{"answered after a greeting", greet(greeting), true, time.Minute, failures{}},
		{"nobody listens", nil, false, time.Minute, failures{Refused: n}},
		{"closed", func(*net.TCPConn) {}, false, time.Minute, failures{Cut: n}},
		{"reset", func(c *net.TCPConn) { c.SetLinger(0) }, false, time.Minute, failures{Cut: n}},
		{"half an answer", func(c *net.TCPConn) {
			b := make([]byte, requestSize)
			c.Read(b)
			c.Write(b[:requestSize/2])
		}, false, time.Minute, failures{Cut: n}},
		{"no answer", func(c *net.TCPConn) {
			for b := make([]byte, requestSize); ; {
				if _, err := c.Read(b); err != nil {
					return
				}
			}
		}, false, 20 * time.Millisecond, failures{TimedOut: n}},
		{"a byte is wrong", answer(func(b []byte) []byte { b[requestSize-1]++; return b }), false, time.Minute, failures{Wrong: n}},
		{"a byte too many", answer(func(b []byte) []byte { return append(b, 0) }), false, time.Minute, failures{Wrong: n}},
		{"another's answer", answer(func([]byte) []byte { b := requestOf(1000); return b[:] }), false, time.Minute, failures{Wrong: n}},
		{"no greeting", greet(1000), true, time.Minute, failures{Wrong: n}},
	} {
		t.Run(test.name, func(t *testing.T) {
			listener, err := net.Listen("tcp4", "127.0.0.1:0")
			require.NoError(t, err)
			defer listener.Close()
			if test.serve == nil {
				listener.Close()
			}
			go func() {
				for {
					c, err := listener.Accept()
					if err != nil {
						return
					}
					go func() {
						defer c.Close()
						test.serve(c.(*net.TCPConn))
					}()
				}
			}()
			l := &failoverLoad{Patience: test.patience, GreetedByPeers: test.greeted}
			require.NoError(t, l.prepare(netip.MustParseAddrPort(listener.Addr().String())))
			require.NoError(t, l.run(1, n, time.Millisecond))
			assert.Equal(t, n, l.sample.Asked)
			assert.Equal(t, test.want, l.sample.Failures)
			if test.want == (failures{}) {
				assert.Len(t, l.took, n)
				assert.GreaterOrEqual(t, l.sample.Max, l.sample.P50)
				assert.Positive(t, l.sample.P50)
			} else {
				assert.Zero(t, l.sample.Max, "only answers count")
			}
		})
	}
}

func TestFailoverIsComparedRoundByRound(t *testing.T) {
	ms := func(asked, cut int, p time.Duration) *failoverSample {
		return &failoverSample{Asked: asked, Failures: failures{Cut: cut}, P50: p * time.Millisecond, P99: 2 * p * time.Millisecond, Max: 3 * p * time.Millisecond, Late: 4 * time.Millisecond}
	}
	sc, well, bad := scene{name: "some"}, fault{name: allWell, lossless: true}, fault{name: "bad", lossless: true}
	r := &failoverReport{}
	for i, m := range []*failoverSample{ms(10, 0, 5), ms(10, 0, 100), ms(10, 0, 7)} {
		r.add(sc, well, "redial", 1, m)
		r.add(sc, bad, "redial", 1, []*failoverSample{ms(10, 0, 7), ms(10, 0, 101), ms(10, 10, 0)}[i])
		r.add(sc, bad, "HAProxy", 1, ms(10, 10, 0))
	}
	row := func(system string) string {
		for line := range strings.Lines(r.tables("some", "bad")) {
			if strings.HasPrefix(line, "| "+system+" ") {
				return strings.Join(strings.Fields(line), " ")
			}
		}
		return ""
	}
	assert.Equal(t, "| redial | 10 of 30 | 10 cut | 1.0 (1.0 to 2.0) | 2.0 (2.0 to 4.0) | 3.0 (3.0 to 6.0) | 4.0 (4.0 to 4.0) |", row("redial"), "a round without answers has no latency")
	assert.Equal(t, "| HAProxy | 30 of 30 | 30 cut | - | - | - | - |", row("HAProxy"))
	assert.Contains(t, r.tables("some", allWell), "7.0 (5.0 to 100.0)", "with all well, what it is")

	assert.ErrorContains(t, r.verdict(), "some: bad, redial: of 30 clients, 10 cut")
	assert.NotContains(t, r.verdict().Error(), "HAProxy")
	r.Series[1].Lossless = false
	assert.NoError(t, r.verdict(), "a client can be lost with its backend")
	r.find("some", "bad", "HAProxy", 0).Samples[0].Failures.Wrong = 1
	assert.ErrorContains(t, r.verdict(), "HAProxy: of 30 clients, 30 cut, 1 WRONG", "another's answer is never right")
}

func TestWavesAreKeptApart(t *testing.T) {
	r := &failoverReport{}
	for wave := 1; wave <= 2; wave++ {
		r.add(scene{name: "some", wave: true}, fault{name: allWell}, "redial", wave, &failoverSample{Asked: wave})
	}
	assert.Contains(t, r.tables("some", allWell), "**some: all well, 4 more waves**")
	assert.Equal(t, 2, r.find("some", allWell, "redial", 2).Samples[0].Asked)
}

func TestFailoverOptionsAreBounded(t *testing.T) {
	good := failoverOptions{rate: 1, tenRate: 1, wave: 1, patience: 1}
	assert.NoError(t, good.validate())
	for _, change := range []func(*failoverOptions){
		func(o *failoverOptions) { o.rate = 20_001 },
		func(o *failoverOptions) { o.tenRate = 0 },
		func(o *failoverOptions) { o.wave = -1 },
		func(o *failoverOptions) { o.warm = -1 },
		func(o *failoverOptions) { o.patience = 0 },
	} {
		bad := good
		change(&bad)
		assert.Error(t, bad.validate())
	}
}
