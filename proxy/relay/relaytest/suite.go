// Package relaytest is the behaviour suite that every relay engine has to pass. It drives an engine through sockets only:
// what a client and a backend see is what counts.
//
//	func TestRelay(t *testing.T) {
//		relaytest.Run(t, func(cfg relay.Config) (relaytest.Engine, relaytest.Listen) { ... })
//	}
package relaytest

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy/relay"
)

// Listener is what the suite needs of a listener.
type Listener interface {
	Addr() netip.AddrPort
	Serve()
	SetOpen(bool) error
	Close() error
	Stats() relay.Stats
	Configure(relay.Settings)
}

// TCPListener is what it needs of one for TCP.
type TCPListener interface {
	Listener
	Retain(usable []netip.AddrPort, after time.Duration)
}

// Engine is the relay under test.
type Engine interface {
	CloseIdle() bool
	Shutdown(context.Context) int
	Totals() relay.Totals
	// Advance puts the engine's clock forward, and returns when what was due has happened.
	Advance(time.Duration)
}

// Listen opens a listener on an engine. It exists because methods returning different listener types cannot satisfy one
// interface.
type Listen func(addr netip.AddrPort, name string, b relay.Balancer) (TCPListener, error)

// New makes an engine.
type New func(relay.Config) (Engine, Listen)

// never is a time that no test puts the clock forward by.
const never = 10000 * time.Hour

// patiently gives backends all the time there is, unless a test says otherwise: how long something takes on a busy machine
// must not matter.
func patiently[Listen any](new func(relay.Config) (Engine, Listen)) func(relay.Config) (Engine, Listen) {
	return func(cfg relay.Config) (Engine, Listen) {
		for _, d := range []*time.Duration{&cfg.DialTimeout, &cfg.TryTimeout, &cfg.UDPTimeout} {
			*d = cmp.Or(*d, never)
		}
		return new(cfg)
	}
}

// Run runs the suite.
func Run(t *testing.T, new New) {
	new = patiently(new)
	for name, test := range map[string]func(*testing.T, New){
		"Bytes":                             testBytes,
		"ServerSpeaksFirst":                 testServerSpeaksFirst,
		"IPv6":                              testIPv6,
		"IdleCostsTwoFDs":                   testIdleCostsTwoFDs,
		"Churn":                             testChurn,
		"ClientClosesFirst":                 testClientClosesFirst,
		"BackendClosesFirst":                testBackendClosesFirst,
		"HalfCloseTimeout":                  testHalfCloseTimeout,
		"HalfCloseRearmed":                  testHalfCloseRearmed,
		"HalfClosedClientGoes":              testHalfClosedClientGoes,
		"BackendResets":                     testBackendResets,
		"BackendResetsAfterFIN":             testBackendResetsAfterFIN,
		"ClientResets":                      testClientResets,
		"PeerVanishes":                      testPeerVanishes,
		"RefusedThenGood":                   testRefusedThenGood,
		"AllRefused":                        testAllRefused,
		"SilentThenGood":                    testSilentThenGood,
		"LoneSilentRecovers":                testLoneSilentRecovers,
		"AnswersPastTheBudget":              testAnswersPastTheBudget,
		"SilentDoesNotBlock":                testSilentDoesNotBlock,
		"ClientLeaves":                      testClientLeaves,
		"NothingRetried":                    testNothingRetried,
		"NoBackend":                         testNoBackend,
		"Refusing":                          testRefusing,
		"RefusingKeepsPort":                 testRefusingKeepsPort,
		"CloseKeepsLive":                    testCloseKeepsLive,
		"CloseKeepsCounting":                testCloseKeepsCounting,
		"CloseIdle":                         testCloseIdle,
		"CloseIdleBesideClients":            testCloseIdleBesideClients,
		"ShutdownWaits":                     testShutdownWaits,
		"ShutdownCuts":                      testShutdownCuts,
		"ShutdownCutsDials":                 testShutdownCutsDials,
		"FDBudget":                          testFDBudget,
		"FDExhaustion":                      testFDExhaustion,
		"PanicIsContained":                  testPanicIsContained,
		"PausedClient":                      testPausedClient,
		"HalfCloseSlowReader":               testHalfCloseSlowReader,
		"ResetAfterBothFINs":                testResetAfterBothFINs,
		"ClientResetsWhileBackendIsStuck":   testClientResetsWhileBackendIsStuck,
		"CloseRacesWithAccept":              testCloseRacesWithAccept,
		"EndOfBudgetBlamesNobody":           testEndOfBudgetBlamesNobody,
		"ShutdownBlamesNobody":              testShutdownBlamesNobody,
		"ShortageBlamesNobody":              testShortageBlamesNobody,
		"ClientLeavesWhileItWaits":          testClientLeavesWhileItWaits,
		"ListenersAndConnectionsShare":      testListenersAndConnectionsShare,
		"PatienceGrows":                     testPatienceGrows,
		"NobodyElsesBytes":                  testNobodyElsesBytes,
		"NoLostWakeUp":                      testNoLostWakeUp,
		"UrgentData":                        testUrgentData,
		"PanicsEndOneConnection":            testPanicsEndOneConnection,
		"Reopened":                          testReopened,
		"ManyListeners":                     testManyListeners,
		"Burst":                             testBurst,
		"RestingStreamsCostTwoFDs":          testRestingStreamsCostTwoFDs,
		"StuckStreams":                      testStuckStreams,
		"ClientResetsWhileDialling":         testClientResetsWhileDialling,
		"ClientSendsAndResetsWhileDialling": testClientSendsAndResetsWhileDialling,
		"EarlyClose":                        testEarlyClose,
		"EarlyCloseOfAQueue":                testEarlyCloseOfAQueue,
		"AllCloseEarly":                     testAllCloseEarly,
		"CloseAfterAByte":                   testCloseAfterAByte,
		"CloseAfterTheClients":              testCloseAfterTheClients,
		"LateClose":                         testLateClose,
		"EarlyHalfClose":                    testEarlyHalfClose,
		"EarlyCloseKeepsBytes":              testEarlyCloseKeepsBytes,
		"EarlyCloseThenRefused":             testEarlyCloseThenRefused,
		"Hedge":                             testHedge,
		"HedgeFindsTheDead":                 testHedgeFindsTheDead,
		"HedgeLost":                         testHedgeLost,
		"HedgesTwoAtMost":                   testHedgesTwoAtMost,
		"HedgeAnsweredLate":                 testHedgeAnsweredLate,
		"HedgeBothSilent":                   testHedgeBothSilent,
		"HedgeOff":                          testHedgeOff,
		"HedgeAndClientLeaves":              testHedgeAndClientLeaves,
		"HedgeRefused":                      testHedgeRefused,
		"FirstRefusedBesideHedge":           testFirstRefusedBesideHedge,
		"HedgeNeedsADescriptor":             testHedgeNeedsADescriptor,
		"MaxRetries":                        testMaxRetries,
		"MaxRetriesAndBothSilent":           testMaxRetriesAndBothSilent,
		"NoLocalPortForLong":                testNoLocalPortForLong,
		"RetryBudget":                       testRetryBudget,
		"LimitRefuses":                      testLimitRefuses,
		"LimitIsShared":                     testLimitIsShared,
		"QueueInOrder":                      testQueueInOrder,
		"QueueTimeout":                      testQueueTimeout,
		"QueueTimeoutOfTwoWaits":            testQueueTimeoutOfTwoWaits,
		"QueueLeft":                         testQueueLeft,
		"QueueForABackend":                  testQueueForABackend,
		"QueueCut":                          testQueueCut,
		"LimitChanges":                      testLimitChanges,
		"LimitedFlood":                      testLimitedFlood,
		"LimitUnderChurn":                   testLimitUnderChurn,
		"LimitUnderLeavers":                 testLimitUnderLeavers,
		"LimitUnderFaults":                  testLimitUnderFaults,
		"IdleTimeout":                       testIdleTimeout,
		"IdleTimeoutRenewed":                testIdleTimeoutRenewed,
		"IdleTimeoutStuck":                  testIdleTimeoutStuck,
		"IdleTimeoutSlowReader":             testIdleTimeoutSlowReader,
		"MaxConnectionAge":                  testMaxConnectionAge,
		"MaxConnectionAgeStuck":             testMaxConnectionAgeStuck,
		"MaxConnectionAgeBusy":              testMaxConnectionAgeBusy,
		"Drain":                             testDrain,
		"DrainAndReturn":                    testDrainAndReturn,
		"DrainAfterClose":                   testDrainAfterClose,
		"DrainTimeChanges":                  testDrainTimeChanges,
		"ProxyProtocol":                     testProxyProtocol,
		"ProxyProtocolEarlyClose":           testProxyProtocolEarlyClose,
		"OriginalDestination":               testOriginalDestination,
		"Signals":                           testSignals,
		"FloodLeavesRoom":                   testFloodLeavesRoom,
		"MaxConnections":                    testMaxConnections,
	} {
		t.Run(name, func(t *testing.T) { test(t, new) })
	}
}

// patience bounds every wait in the suite. It is far beyond what any step takes on a busy machine.
const patience = time.Minute

// start runs a listener on loopback over b until the test ends, and then checks the books: nothing active, every
// accepted connection in one of the outcomes, every pick reported and every connection released.
func start(t *testing.T, new New, cfg relay.Config, b *balancer) (Engine, TCPListener) {
	return startOn(t, new, cfg, b, "127.0.0.1")
}

func startOn(t *testing.T, new New, cfg relay.Config, b *balancer, address string) (Engine, TCPListener) {
	t.Helper()
	engine, listen := new(cfg)
	l := listenAnywhere(t, listen, netip.MustParseAddr(address), b)
	l.Serve()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		engine.Shutdown(ctx)
		s := l.Stats()
		require.Zero(t, s.Active, "%+v", s)
		require.Equal(t, s.Accepted, s.Connected+s.Failed+s.NoBackend+s.Abandoned+s.Limited, "%+v", s)
		require.True(t, b.balanced(), "picks, reports and releases balance: %+v", b)
	})
	return engine, l
}

// listenAnywhere takes the first free port of a range in which the kernel does not choose ports by itself: refusing
// clients needs a port that was asked for by number.
func listenAnywhere[L any](t *testing.T, listen func(netip.AddrPort, string, relay.Balancer) (L, error), addr netip.Addr, b relay.Balancer) (l L) {
	t.Helper()
	for port := uint16(61000); port != 0; port++ {
		var err error
		l, err = listen(netip.AddrPortFrom(addr, port), "default/web:http/TCP", b)
		if !errors.Is(err, syscall.EADDRINUSE) {
			require.NoError(t, err)
			return l
		}
	}
	require.FailNow(t, "no free port")
	return l
}

// backend accepts on loopback and hands each connection to serve, on a goroutine of its own.
func backend(t *testing.T, serve func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serveOn(t, l, serve)
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func serveOn(t *testing.T, l net.Listener, serve func(*net.TCPConn)) {
	var running sync.WaitGroup
	ending := make(chan struct{})
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(patience))
				served := make(chan struct{})
				defer close(served)
				running.Go(func() {
					select {
					case <-ending:
						conn.SetDeadline(time.Now())
					case <-served:
					}
				})
				serve(conn.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() { l.Close(); close(ending); running.Wait() })
}

// refused is an address that nobody listens on, nor will: its port stays taken until the test ends.
func refused(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, addr := bound(t)
	t.Cleanup(func() { unix.Close(fd) })
	return addr
}

// bound makes a socket that has a port on loopback and does not listen.
func bound(t *testing.T) (fd int, addr netip.AddrPort) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, err := unix.Getsockname(fd)
	require.NoError(t, err)
	return fd, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(name.(*unix.SockaddrInet4).Port))
}

// dial connects a client to l.
func dial(t *testing.T, l Listener) *net.TCPConn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", l.Addr().String(), patience)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.TCPConn)
}

// expectReset connects a client that is to be cut by a reset before it gets a byte, which it may hear of as early as in
// connect(2).
func expectReset(t *testing.T, l Listener) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", l.Addr().String(), patience)
	if err == nil {
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(patience))
		_, err = conn.Read(make([]byte, 1))
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func waitFor(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		require.FailNow(t, "waiting for "+what)
	}
}

func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, patience, time.Millisecond, what)
}
