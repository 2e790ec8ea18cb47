package relay

import (
	"errors"
	"io"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
)

// Balancer chooses backends for one listener. The relay's event loops call it, several at a time: a call that takes long
// holds up every connection of its loop. If it panics, only the connection concerned ends.
type Balancer interface {
	// Pick returns a backend that is not in tried; false means that there is none, or none that takes a connection.
	Pick(client netip.Addr, tried []netip.AddrPort) (netip.AddrPort, bool)
	// PickFor is Pick for a Balancer to which it matters which address the client has dialled; it may be invalid.
	PickFor(client, destination netip.Addr, tried []netip.AddrPort) (netip.AddrPort, bool)
	// WantsDestination reports whether it does: finding out takes a system call.
	WantsDestination() bool
	// Report tells how a dial to a picked backend ended, and how long it took (zero: unknown): nil means connected;
	// context.Canceled that it was given up for reasons that say nothing about the backend.
	Report(client netip.Addr, backend netip.AddrPort, took time.Duration, err error)
	// Fail tells that a connection that was reported as connected leads nowhere after all. It still has to be released.
	Fail(client netip.Addr, backend netip.AddrPort, err error)
	// Release tells that a connection reported as connected has ended.
	Release(backend netip.AddrPort)
	// HedgeDelay returns how long a dial to backend may be silent before another one is worth being dialled beside it.
	HedgeDelay(backend netip.AddrPort) time.Duration
	// Overdue tells that a dial to backend has been silent for as long, and that its outcome will be known after wait. It
	// reports whether there are backends outside tried of which that is not known.
	Overdue(backend netip.AddrPort, wait time.Duration, tried []netip.AddrPort) bool
	// Working reports whether a connection that begins now may have as many dials as it needs.
	Working() bool
	// Retry reports whether any other connection may have one more dial than it has had. If so, that may be taken from a
	// budget.
	Retry() bool
	// Freed tells why Pick has found nothing: nil that there is no backend outside tried, otherwise that all of them have as
	// many connections as they may. The channel is closed when one may have fewer.
	Freed(tried []netip.AddrPort) <-chan struct{}
}

// Config holds what all listeners of a Relay share. The zero value works: each field then has its default.
type Config struct {
	// DialTimeout is how long one client connection may look for a backend, all attempts together. 0: 5s.
	DialTimeout time.Duration
	// TryTimeout is how long a backend may stay silent before another one is dialled at the latest: it has failed then,
	// though its dial goes on beside the other's until a third is needed. Balancer.HedgeDelay may say that another is
	// worth a dial earlier. When all have been silent, the next round over them is twice as patient. 0: 250ms.
	TryTimeout time.Duration
	// HalfCloseTimeout ends a connection of which one direction has ended and the other has been idle for so long.
	// 0: 1h, what the kernel's connection tracking grants a connection in CLOSE_WAIT under kube-proxy.
	HalfCloseTimeout time.Duration
	// KeepAlive is the idle time before the first TCP keep-alive probe and between probes, on both sides. 0: 15s.
	KeepAlive time.Duration
	// UserTimeout is about how long sent bytes, or probes, may stay unacknowledged before a side is given up. A peer that
	// answers but takes nothing is not. 0: 2m.
	UserTimeout time.Duration
	// Mark is set on backend sockets (SO_MARK) so that rules can tell the proxy's own connections. 0: none, which
	// needs no privilege.
	Mark uint32
	// ListenControl prepares listening sockets before they are bound to addr, beyond what the relay does itself. An error
	// is one of listening. Nil: there is nothing to do.
	ListenControl func(fd int, addr netip.AddrPort) error
	// Loops is how many event loops there are for TCP, and as many for UDP where it is served; each has a thread. A loop that
	// waits keeps one of the scheduler's processors (GOMAXPROCS) for a while: there should be more of those than loops.
	// 0: GOMAXPROCS.
	Loops int
	// MaxFDs is how many file descriptors there may be. A quarter, and not more than three quarters of the kernel's
	// ephemeral ports, is for UDP sessions, one each; listeners and TCP connections share the rest, two each, listeners at
	// most half of it. So a flood of one protocol does not starve the other. At the limit new connections wait in the
	// kernel's accept queue, and a new session ends the one that has been idle for longest. 0: the process's limit less
	// 64 and 4 per loop for everything else.
	MaxFDs int
	// MaxConnections is how many TCP connections there may be, give or take one for each processor. Those beyond it wait in
	// the kernel's accept queue. 0: as many as there are descriptors for. A listener that has many leaves some of either to
	// others.
	MaxConnections int
	// UDPTimeout ends a UDP session that has been idle, in both directions, for so long. 0: 60s, long enough for a slow
	// answer and for a sender of statistics that is silent between intervals.
	UDPTimeout time.Duration
	// Log may be nil: nothing is logged.
	Log *logrus.Entry
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.DialTimeout, 5 * time.Second},
		{&c.TryTimeout, 250 * time.Millisecond},
		{&c.HalfCloseTimeout, time.Hour},
		{&c.KeepAlive, 15 * time.Second},
		{&c.UserTimeout, 2 * time.Minute},
		{&c.UDPTimeout, time.Minute},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Loops == 0 {
		c.Loops = runtime.GOMAXPROCS(0)
	}
	if c.MaxFDs == 0 {
		c.MaxFDs = max(noFileLimit()-reservedFDs-fdsPerLoop*c.Loops, 2*fdsPerConnection)
	}
	if c.Log == nil {
		silent := logrus.New()
		silent.SetOutput(io.Discard)
		c.Log = logrus.NewEntry(silent)
	}
	return c
}

// fdsPerConnection is the client's socket and the backend's. A listener is charged the same: its own socket, and the
// one connection that it may have accepted and not yet been admitted.
const fdsPerConnection = 2

// Relay accepts and relays connections for any number of listeners.
type Relay struct {
	cfg Config
	// defaults are the settings of listeners that ask for none. They are not modified.
	defaults Settings
	born     time.Time // origin of the loops' clock
	// clock is the time of timers, since then. Tests put it forward.
	clock func() time.Duration
	// restless is how long a loop has to be busy before it may give connections away; 0: it always may.
	restless time.Duration
	fds      *descriptors
	live     atomic.Int64 // TCP connections
	udp      udpBudget
	// complained is when a shortage was logged last, in Unix nanoseconds.
	complained atomic.Int64

	mu           sync.Mutex // guards what follows; never held across a system call that can block
	closed       bool
	bound        int // listening sockets
	maxListeners int
	listeners    map[*Listener]struct{}
	leaving      map[*Listener]struct{} // closed, and their connections go on
	shared       map[*SharedListener]struct{}
	udpListeners map[*UDPListener]struct{}
	retired      Totals // of listeners that are no more, and their connections neither
	tcpLoops     []*tcpLoop
	nextTCPLoop  int
	loops        []*udpLoop
	nextLoop     int
	looping      sync.WaitGroup
}

// New returns a Relay without listeners. It starts nothing.
func New(cfg Config) *Relay {
	cfg = cfg.withDefaults()
	// Each session takes a local port for whatever backend, and resolvers on the node need some too (udp_lib_get_port).
	sessions := min(cfg.MaxFDs/4, ephemeralPorts()*3/4)
	born := time.Now()
	return &Relay{
		cfg:          cfg,
		defaults:     Settings{DialTimeout: cfg.DialTimeout, UDPTimeout: cfg.UDPTimeout},
		born:         born,
		clock:        func() time.Duration { return time.Since(born) },
		restless:     10 * time.Millisecond,
		fds:          newDescriptors(int64(cfg.MaxFDs - sessions)),
		udp:          udpBudget{max: int64(sessions)},
		maxListeners: (cfg.MaxFDs - sessions) / 2 / fdsPerConnection,
		listeners:    map[*Listener]struct{}{},
		leaving:      map[*Listener]struct{}{},
		shared:       map[*SharedListener]struct{}{},
		udpListeners: map[*UDPListener]struct{}{},
	}
}

// ErrShutdown is returned by Listen after Shutdown.
var ErrShutdown = errors.New("the relay is shutting down")

// tcpLoop returns the event loop for the next TCP listener, and how many there are, which begin with the
// first listener.
func (r *Relay) tcpLoop() (*tcpLoop, int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, 0, ErrShutdown
	}
	if r.tcpLoops == nil {
		for i := range r.cfg.Loops {
			lp, err := newTCPLoop(r, i)
			if err != nil {
				for _, lp := range r.tcpLoops {
					lp.close(func(f func()) { f() })
				}
				r.tcpLoops = nil
				return nil, 0, err
			}
			r.tcpLoops = append(r.tcpLoops, lp)
		}
		for _, lp := range r.tcpLoops {
			lp.peers = r.tcpLoops
			r.looping.Go(lp.run)
		}
	}
	r.nextTCPLoop++
	return r.tcpLoops[r.nextTCPLoop%len(r.tcpLoops)], len(r.tcpLoops), nil
}

// udpLoop returns the event loop for the next UDP listener. They begin with the first ones.
func (r *Relay) udpLoop() (*udpLoop, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrShutdown
	}
	if len(r.loops) < r.cfg.Loops {
		lp, err := newUDPLoop(r)
		if err != nil {
			return nil, err
		}
		r.loops = append(r.loops, lp)
		r.looping.Go(lp.run)
	}
	r.nextLoop++
	return r.loops[r.nextLoop%len(r.loops)], nil
}

// largestUDP returns the UDP listener that has most sessions, preferably l.
func (r *Relay) largestUDP(l *UDPListener) *UDPListener {
	r.mu.Lock()
	defer r.mu.Unlock()
	most := l.stats.active.Load()
	for m := range r.udpListeners {
		if n := m.stats.active.Load(); n > most {
			l, most = m, n
		}
	}
	return l
}

func (r *Relay) add(l *Listener) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrShutdown
	}
	r.listeners[l] = struct{}{}
	return nil
}

// Loops returns how many event loops there are for each protocol once they are needed.
func (r *Relay) Loops() int { return r.cfg.Loops }
