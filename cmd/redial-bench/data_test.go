package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// One byte that is not as it was sent must be seen, in whichever direction and wherever it is, or a proxy that mixes up its
// buffers would win.
func TestEveryByteIsCompared(t *testing.T) {
	backend := startPeer(t)
	for _, load := range []struct {
		name string
		args string
		// Bytes that the connections carry in all: at least so many each way.
		up, down int64
	}{
		{"short connections", "--short 2", 1000, 1000},
		{"round trips", "--trips 2", 1000, 1000},
		{"idle connections", "--idle 20", 1000, 1000},
		{"streams up", "--upload 2", 1 << 20, 0},
		{"streams down", "--download 2", 100, 1 << 20},
		{"paced streams down", "--download 2 --pace 50000000", 100, 1 << 20},
	} {
		t.Run(load.name, func(t *testing.T) {
			sample := loadThrough(t, &tamperingProxy{backend: backend}, load.args)
			assert.Zero(t, sample.Failed)
			assert.Zero(t, sample.Wrong)
			if load.up > 0 {
				p := &tamperingProxy{backend: backend}
				p.up.Store(load.up)
				sample = loadThrough(t, p, load.args)
				assert.Equal(t, 1, sample.Wrong+sample.Failed, "a wrong byte on its way to the backend; a request that it cannot read has no answer")
				assert.Negative(t, p.up.Load())
			}
			if load.down > 0 {
				p := &tamperingProxy{backend: backend}
				p.down.Store(load.down)
				sample = loadThrough(t, p, load.args)
				assert.Equal(t, 1, sample.Wrong, "a wrong byte on its way to the client")
				assert.Zero(t, sample.Failed)
			}
		})
	}
	t.Run("a stream that is cut short", func(t *testing.T) {
		p := &tamperingProxy{backend: backend, lose: true}
		p.up.Store(1 << 20)
		sample := loadThrough(t, p, "--upload 2")
		assert.Equal(t, 1, sample.Wrong+sample.Failed)
	})
}

// tamperingProxy changes, or loses, one byte of all that it relays: the one before which so many have gone one way. Of 0,
// none.
type tamperingProxy struct {
	backend  string
	up, down atomic.Int64
	lose     bool
}

func (p *tamperingProxy) serve(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			backend, err := net.Dial("tcp4", p.backend)
			if err != nil {
				client.Close()
				return
			}
			go p.relay(backend.(*net.TCPConn), client.(*net.TCPConn), &p.up)
			p.relay(client.(*net.TCPConn), backend.(*net.TCPConn), &p.down)
		}()
	}
}

func (p *tamperingProxy) relay(to, from *net.TCPConn, left *atomic.Int64) {
	defer to.CloseWrite()
	for b := make([]byte, 64<<10); ; {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		if after := left.Add(-int64(n)); after < 0 && after+int64(n) > 0 {
			i := n + int(after) - 1
			if b[i]++; p.lose {
				copy(b[i:], b[i+1:n])
				n--
			}
		}
		if _, err := to.Write(b[:n]); err != nil {
			from.Close()
			return
		}
	}
}

func loadThrough(t *testing.T, p *tamperingProxy, args string) (sample dataSample) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	go p.serve(listener)
	out, err := self(t, append([]string{"data-load", listener.Addr().String(), "--for", "50ms"}, strings.Fields(args)...)...).Output()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &sample))
	return sample
}

func startPeer(t *testing.T) (address string) {
	peer := self(t, "data-peer", "127.0.0.1:0")
	out, err := peer.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, peer.Start())
	t.Cleanup(func() {
		peer.Process.Kill()
		peer.Wait()
	})
	address, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(address)
}

// The yardstick itself: what ends one way goes on the other way, and nothing is left behind.
func TestPlainProxyRelaysHalfClose(t *testing.T) {
	backend, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer backend.Close()
	go func() {
		c, err := backend.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b, _ := io.ReadAll(c)
		c.Write(append([]byte("after the end: "), b...))
	}()
	front, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error)
	go func() { ended <- servePlainly(front, []string{backend.Addr().String()}) }()
	c, err := net.Dial("tcp4", front.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	_, err = c.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, c.(*net.TCPConn).CloseWrite())
	b, err := io.ReadAll(c)
	require.NoError(t, err)
	assert.Equal(t, "after the end: hello", string(b))
	front.Close()
	assert.ErrorIs(t, <-ended, net.ErrClosed)
}

// A tenth of a second shows nothing about speed, but that every system is there and relays every load as it came.
func TestDataOnASmallScale(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	var r dataReport
	out := measureSmall(t, &r, "data", "--seconds", "0.1", "--idle", "50", "--services", "20", "--loads", "short connections, 32,16 streams up,beside,idle")
	of := map[string]int{}
	for _, s := range r.Series {
		of[s.Load]++
		require.Len(t, s.Samples, 1, "%s, %s", s.Load, s.label())
		m := s.Samples[0]
		assert.Zero(t, m.Failed, "%s, %s", s.Load, s.label())
		assert.Zero(t, m.Wrong, "%s, %s", s.Load, s.label())
		assert.True(t, m.Done > 0 || m.Bytes > 0 || m.Idle == 50, "%s, %s: %+v", s.Load, s.label(), m)
		if s.System != "kernel DNAT" {
			assert.Positive(t, m.During.Resident, "%s, %s", s.Load, s.label())
		}
		if m.Idle > 0 && s.own() {
			assert.InDelta(t, 100, m.During.FDs-m.Before.FDs, 20, "%s: two descriptors for each, and what a look at the rules takes", s.label())
		}
	}
	systems := 4 // the kernel, io.Copy, redial with rules and without
	confined := 4
	for _, peer := range []string{"nginx stream", "HAProxy"} {
		if !strings.Contains(out, peer+" absent") {
			systems, confined = systems+1, confined+2
		}
	}
	assert.Equal(t, systems, of[shortLoad])
	assert.Equal(t, systems, of["16 streams up"])
	assert.Equal(t, systems, of["50 idle connections"])
	assert.Equal(t, systems-1, of["20 Services of 4 backends, "+shortLoad])
	if !strings.Contains(out, "not measured") {
		assert.Equal(t, confined, of["1 and 2 cores, "+shortLoad])
	}
}

func TestSyscallsAreCounted(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("strace is not installed")
	}
	var r dataReport
	measureSmall(t, &r, "data", "--seconds", "0.1", "--syscalls", "--systems", "DNAT,io.Copy,no rules")
	require.Len(t, r.Syscalls, 2, "of the kernel there are none")
	for _, s := range r.Syscalls {
		assert.Positive(t, s.Connections, s.System)
		// Some of the connections are not accepted before strace ends.
		assert.InDelta(t, 1, s.each("accept4"), 0.5, "%s: %v", s.System, s.Calls)
		assert.InDelta(t, 1, s.each("connect"), 0.5, "%s: %v", s.System, s.Calls)
	}
}

func TestParseStrace(t *testing.T) {
	calls, err := parseStrace(`% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000600           3       200       100 accept4
 40.00    0.000400           4       100           close
------ ----------- ----------- --------- --------- ----------------
100.00    0.001000           3       300       100 total
`)
	require.NoError(t, err)
	assert.Equal(t, map[string]int{"accept4": 200, "close": 100}, calls)
	_, err = parseStrace("strace: attach: Operation not permitted\n")
	assert.Error(t, err)

	lines := strings.Split(syscallsTable([]*syscallsSeries{
		{System: "a", Connections: 100, Calls: calls}, {System: "b", Connections: 1000, Calls: map[string]int{"close": 2000, "getpid": 1}},
	}).String(), "\n")
	assert.Equal(t, "| accept4     | 2.00    |         |", lines[2])
	assert.Equal(t, "| close       | 1.00    | 2.00    |", lines[3])
	assert.Equal(t, "| **all**     | **3.0** | **2.0** |", lines[4], "what is done seldom is in the sum only")
}

func secondsOf(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

func TestDataReport(t *testing.T) {
	r := &dataReport{Rounds: 3, Seconds: 1}
	redial, nginx := &system{name: "redial"}, &system{name: "nginx stream"}
	for i, cpu := range []float64{0.09, 0.2, 0.11} {
		elapsed := []float64{1, 2, 1}[i]
		done := int(1000 * elapsed)
		r.add("short", redial, &dataSample{Elapsed: secondsOf(elapsed), CPU: secondsOf(cpu), Done: done, P50: time.Millisecond, P99: 2 * time.Millisecond})
		r.add("short", nginx, &dataSample{Elapsed: secondsOf(elapsed), CPU: 2 * secondsOf(cpu), Done: done / 2, P50: time.Millisecond, P99: 4 * time.Millisecond, Failed: i})
	}
	r.add("bulk", redial, &dataSample{Elapsed: secondsOf(1), CPU: secondsOf(0.5), Bytes: 1 << 30, Kept: 4, Before: footprint{FDs: 10}, During: footprint{FDs: 18}})
	r.add("idle", redial, &dataSample{Elapsed: secondsOf(1), Idle: 100, Kept: 100, Before: footprint{FDs: 10}, During: footprint{FDs: 210, Resident: 100 << 11}})
	for cores, done := range map[int]int{1: 100, 2: 150} {
		r.add("scale", &system{name: "redial" + ofCores(cores), cores: cores}, &dataSample{Elapsed: secondsOf(1), CPU: secondsOf(float64(cores) / 2), Done: done, P99: time.Second})
	}
	row := func(text string, cells ...string) {
		t.Helper()
		for line := range strings.Lines(text) {
			got := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			for i := range got {
				got[i] = strings.TrimSpace(got[i])
			}
			if assert.ObjectsAreEqual(cells, got) {
				return
			}
		}
		t.Errorf("no row %q in\n%s", cells, text)
	}
	row(r.tables("short"), "system", "per second", "p50, µs", "p99, µs", "CPU each, µs", "failed")
	row(r.tables("short"), "redial", "1000 (1000-1000)", "1000.0 (1000.0-1000.0)", "2000.0 (2000.0-2000.0)", "100.0 (90.0-110.0)", "0")
	row(r.tables("short"), "redial", "nginx stream", "2.00 (2.00-2.00)", "1.00 (1.00-1.00)", "0.50 (0.50-0.50)", "0.25 (0.25-0.25)")
	row(r.tables("bulk"), "redial", "8.59", "500", "2.0", "0")
	row(r.tables("idle"), "redial", "100", "2.0", "2.0", "0", "0")
	row(r.tables("scale"), "redial", "1.50", "1.00", "1.33", "0.50", "1.00")
	row(r.summary(), "short", "per second", "1000", "500")
	row(r.summary(), "bulk", "Gbit/s", "8.59", "")
	assert.NotContains(t, r.summary(), "scale")

	assert.NoError(t, r.verdict(), "what the others lose stands in the tables")
	r.Series[0].Samples[1].Failed = 2
	assert.ErrorContains(t, r.verdict(), "short, redial: 2 connections failed, 0 brought wrong bytes")
	r.Series[1].Samples[1].Wrong = 1
	assert.ErrorContains(t, r.verdict(), "short, nginx stream: 3 connections failed, 1 brought wrong bytes")
	assert.Contains(t, r.tables("short"), "3, 1 WRONG")
}
