package relay_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/balancer"
	"redial/proxy/intercept/lab"
	"redial/proxy/relay"
)

// watched counts the picks of one backend.
type watched struct {
	*balancer.Balancer
	backend netip.AddrPort
	picks   atomic.Int64
}

func (w *watched) Pick(client netip.Addr, tried []netip.AddrPort) (netip.AddrPort, bool) {
	picked, ok := w.Balancer.Pick(client, tried)
	if picked == w.backend {
		w.picks.Add(1)
	}
	return picked, ok
}

// greet has a byte for every connection.
func greet(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		conn.Write([]byte("x"))
		conn.Close()
	}
}

// greeted is a client that expects it.
func greeted(t *testing.T, l *relay.Listener) {
	conn, err := net.Dial("tcp", l.Addr().String())
	if !assert.NoError(t, err) {
		return
	}
	defer conn.Close()
	_, err = conn.Read(make([]byte, 1))
	assert.NoError(t, err)
}

// A backend that was left out is back, and nobody knows, when the last other one crashes with more clients than there is a
// budget for.
func TestCrashOfTheLastBackendSpendsNoBudget(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, _ *lab.Host) { crashOfTheLast(t) })
}

func crashOfTheLast(t *testing.T) {
	const clients = 50
	listen := func() (*net.TCPListener, netip.AddrPort) {
		pl, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		t.Cleanup(func() { pl.Close() })
		return pl, pl.Addr().(*net.TCPAddr).AddrPort()
	}
	back, backAddr := listen()
	last, lastAddr := listen()
	b := balancer.New(nil)
	b.Update(balancer.Config{Backends: []balancer.Backend{{Addr: backAddr, Weight: 1}, {Addr: lastAddr, Weight: 1}}, Probe: true})
	for b.Ejected() == 0 {
		if to, _ := b.Pick(netip.Addr{}, nil); to == backAddr {
			b.Report(netip.Addr{}, to, time.Second, os.ErrDeadlineExceeded)
		} else {
			b.Report(netip.Addr{}, to, 0, context.Canceled)
		}
	}
	r := relay.New(relay.Config{})
	defer r.Shutdown(t.Context())
	l, err := r.Listen(netip.MustParseAddrPort("127.0.0.1:61000"), "default/web/TCP", b)
	require.NoError(t, err)
	defer l.Close()
	l.Serve()
	go greet(back)
	var waiting []*net.TCPConn
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() { greeted(t, l) })
	}
	for range clients {
		conn, err := last.AcceptTCP()
		require.NoError(t, err)
		waiting = append(waiting, conn)
	}
	last.Close()
	for _, conn := range waiting {
		conn.SetLinger(0)
		conn.Close()
	}
	wg.Wait()
}

// With the balancer that it is made for: a backend that vanishes without a word is found out by the first connections,
// none of which fails, and those after them do not notice.
func TestHedgesLeadToEjection(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		var backends []balancer.Backend
		var pods []*lab.Host
		for i := range 3 {
			pod, err := node.AddHost(fmt.Sprint("pod", i), fmt.Sprintf("198.18.%d.2/24", i+1))
			require.NoError(t, err)
			pods = append(pods, pod)
			var pl net.Listener
			require.NoError(t, pod.Do(func() (err error) { pl, err = net.Listen("tcp", ":8080"); return err }))
			t.Cleanup(func() { pl.Close() })
			go greet(pl)
			backends = append(backends, balancer.Backend{Addr: netip.MustParseAddrPort(fmt.Sprintf("198.18.%d.2:8080", i+1)), Weight: 1})
		}
		b := &watched{Balancer: balancer.New(nil), backend: backends[1].Addr}
		b.Update(balancer.Config{Backends: backends, Probe: true})
		r := relay.NewTimed(relay.Config{TryTimeout: time.Hour, DialTimeout: 1000 * time.Hour})
		defer r.Shutdown(t.Context())
		l, err := r.Listen(netip.MustParseAddrPort("127.0.0.1:61000"), "default/web/TCP", b)
		require.NoError(t, err)
		defer l.Close()
		l.Serve()
		wave := func(n int) string {
			var mu sync.Mutex
			var took []time.Duration
			var wg sync.WaitGroup
			for range n {
				wg.Go(func() {
					start := time.Now()
					greeted(t, l)
					mu.Lock()
					defer mu.Unlock()
					took = append(took, time.Since(start))
				})
			}
			wg.Wait()
			slices.Sort(took)
			return fmt.Sprint("p50 ", took[len(took)/2], " p99 ", took[len(took)*99/100], " most ", took[len(took)-1])
		}
		for range 50 {
			wave(3) // it learns how long a dial takes
		}
		t.Log("before: ", wave(1000))
		require.Zero(t, b.Counters().Ejections)
		_, err = pods[1].Output("iptables", "-I", "INPUT", "-p", "tcp", "-j", "DROP")
		require.NoError(t, err)
		before := l.Stats()
		t.Log("first wave: ", wave(1000))
		s := l.Stats()
		assert.Positive(t, s.Hedges-before.Hedges)
		r.Advance(time.Hour) // for as long as it is silent to those that have been dialled beside it
		require.Positive(t, b.Counters().Ejections)
		b.picks.Store(0)
		t.Log("after it: ", wave(300))
		assert.LessOrEqual(t, b.picks.Load(), int64(30), "but for those that test whether it is back")
		s = l.Stats()
		assert.Zero(t, s.Failed+s.Abandoned)
	})
}

// A Service without a backend that works makes hardly more dials than it has clients, whether its backends refuse or are
// silent, and none is turned away without a dial.
func TestDeadServicesAreNoStorm(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		pod, err := node.AddHost("pod", "198.18.1.2/24")
		require.NoError(t, err)
		noStorm(t)
		_, err = pod.Output("iptables", "-I", "INPUT", "-p", "tcp", "-j", "DROP")
		require.NoError(t, err)
		noStorm(t)
	})
}

func noStorm(t *testing.T) {
	var backends []balancer.Backend
	for port := uint16(8080); port < 8090; port++ {
		backends = append(backends, balancer.Backend{Addr: netip.AddrPortFrom(netip.MustParseAddr("198.18.1.2"), port), Weight: 1})
	}
	b := balancer.New(nil)
	b.Update(balancer.Config{Backends: backends, Probe: true})
	r := relay.New(relay.Config{TryTimeout: 20 * time.Millisecond, DialTimeout: 200 * time.Millisecond})
	defer r.Shutdown(t.Context())
	l, err := r.Listen(netip.MustParseAddrPort("127.0.0.1:61000"), "default/web/TCP", b)
	require.NoError(t, err)
	defer l.Close()
	l.Serve()
	dials := func() (n int) {
		for _, be := range b.Backends() {
			n += int(be.Picked)
		}
		return n
	}
	clients := func(n int) {
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				conn, err := net.Dial("tcp", l.Addr().String())
				if err == nil {
					_, err = conn.Read(make([]byte, 1))
					conn.Close()
				}
				assert.ErrorIs(t, err, syscall.ECONNRESET)
			})
		}
		wg.Wait()
	}
	for range 100 {
		if clients(1); b.Counters().Ejections >= uint64(len(backends)) { // they have found out
			break
		}
	}
	require.GreaterOrEqual(t, b.Counters().Ejections, uint64(len(backends)))
	const n = 300
	before, since := dials(), time.Now()
	clients(n)
	extra := dials() - before - n
	assert.GreaterOrEqual(t, extra, 0)
	assert.LessOrEqual(t, extra, n/5+10*int(time.Since(since)/time.Second+2), "a fifth, and ten a second")
}
