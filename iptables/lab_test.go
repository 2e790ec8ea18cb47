package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

var modes = []Mode{ModeNFT, ModeLegacy}

// inModes runs body once per mode, each time on a node of its own.
func inModes(t *testing.T, body func(t *testing.T, node *lab.Host, mode Mode)) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			lab.Run(t, func(t *testing.T, node *lab.Host) { body(t, node, mode) })
		})
	}
}

const testMark = 0x4000

var testPorts = intercept.PortRange{First: 61000, Last: 61999}

func testConfig(mode Mode) Config {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return Config{Mode: mode, Mark: testMark, ProxyPorts: testPorts, Log: logrus.NewEntry(log)}
}

func start(t *testing.T, cfg Config) *Rules {
	t.Helper()
	r, err := New(cfg)
	require.NoError(t, err)
	return r
}

// spy counts restores and, if told to, fails them.
type spy struct {
	runner
	mu       sync.Mutex
	restores map[string]int // by program
	execs    int
	refuse   func(input string) string // stderr, or "" to let it through
}

func newSpy() *spy { return &spy{runner: programs{}, restores: map[string]int{}} }

func (s *spy) run(ctx context.Context, stdin, name string, args ...string) ([]byte, string, error) {
	s.mu.Lock()
	s.execs++
	if strings.HasSuffix(name, "-restore") {
		s.restores[name]++
		if s.refuse != nil {
			if stderr := s.refuse(stdin); stderr != "" {
				s.mu.Unlock()
				return nil, stderr, exitStatus(2)
			}
		}
	}
	s.mu.Unlock()
	return s.runner.run(ctx, stdin, name, args...)
}

func (s *spy) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restores, s.execs = map[string]int{}, 0
}

// refusing has no nat table for some programs.
type refusing struct {
	runner
	refuses func(name string) bool
}

func (r refusing) run(ctx context.Context, stdin, name string, args ...string) ([]byte, string, error) {
	if r.refuses(name) {
		return nil, name + ": can't initialize ip6tables table `nat': Table does not exist (do you need to insmod?)", exitStatus(3)
	}
	return r.runner.run(ctx, stdin, name, args...)
}

// exitStatus is the failure of a program.
type exitStatus int

func (e exitStatus) ExitCode() int { return int(e) }
func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func startWith(t *testing.T, cfg Config, s *spy) *Rules {
	t.Helper()
	r, err := newRules(t.Context(), cfg, newHost(s))
	require.NoError(t, err)
	return r
}

// counters and dates differ from dump to dump.
var volatile = regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]`)

// dump is the output of iptables-save for one table, less what changes by itself.
func dump(t *testing.T, mode Mode, v6 bool, table string) string {
	t.Helper()
	program := "iptables-"
	if v6 {
		program = "ip6tables-"
	}
	out, err := exec.Command(program+string(mode)+"-save", "-t", table).Output()
	require.NoError(t, err)
	return volatile.ReplaceAllString(string(out), "")
}

func dumpAll(t *testing.T, mode Mode) string {
	t.Helper()
	var all strings.Builder
	for _, v6 := range []bool{false, true} {
		for _, table := range []string{"nat", "filter"} {
			all.WriteString(dump(t, mode, v6, table))
		}
	}
	return all.String()
}

// sh runs a command line on the node.
func sh(t *testing.T, node *lab.Host, line string) string {
	t.Helper()
	out, err := node.Output("sh", "-ec", line)
	require.NoError(t, err)
	return out
}

// serve answers on TCP and UDP, on both families, with the port. What arrives is what the proxy would get.
func serve(t *testing.T, port uint16) {
	t.Helper()
	for _, network := range []string{"tcp4", "tcp6"} {
		l, err := net.Listen(network, fmt.Sprintf(":%d", port))
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintf(conn, "tcp %d", port)
				conn.Close()
			}
		}()
	}
	for _, network := range []string{"udp4", "udp6"} {
		config := net.ListenConfig{Control: wantDestination}
		pc, err := config.ListenPacket(context.Background(), network, fmt.Sprintf(":%d", port))
		require.NoError(t, err)
		t.Cleanup(func() { pc.Close() })
		go answerDatagrams(pc.(*net.UDPConn), port)
	}
}

func wantDestination(network, _ string, raw syscall.RawConn) error {
	var err error
	return errors.Join(raw.Control(func(fd uintptr) {
		if network == "udp6" {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		}
	}), err)
}

// answerDatagrams answers "?" and whatever follows with the port and that. It sends the answer from the address that the datagram came to, or it would not be translated back.
func answerDatagrams(conn *net.UDPConn, port uint16) {
	buf, oob := make([]byte, 100), make([]byte, 100)
	for {
		size, n, _, from, err := conn.ReadMsgUDPAddrPort(buf, oob)
		if err != nil {
			return
		}
		messages, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil || len(messages) != 1 {
			continue
		}
		var control []byte
		if info := messages[0].Data; from.Addr().Is4() || from.Addr().Is4In6() {
			control = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte(info[4:8])})
		} else {
			control = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: [16]byte(info[:16])})
		}
		_, number, _ := strings.Cut(string(buf[:size]), "?")
		conn.WriteMsgUDPAddrPort(fmt.Appendf(nil, "udp %d%s", port, number), control, from)
	}
}

// An answer may take long on a busy machine. What must not come is not waited for as long.
const (
	patience = 30 * time.Second
	briefly  = 400 * time.Millisecond
)

// ask sends from h to a VIP and returns the answer.
func ask(h *lab.Host, v intercept.VIP) (string, error) { return askFor(h, v, patience, 0) }

// askFor asks from a socket that carries mark.
func askFor(h *lab.Host, v intercept.VIP, wait time.Duration, mark int) (answer string, err error) {
	err = h.Do(func() error {
		d := net.Dialer{Timeout: wait, Control: func(_, _ string, raw syscall.RawConn) error {
			var err error
			return errors.Join(raw.Control(func(fd uintptr) {
				if mark != 0 {
					err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark)
				}
			}), err)
		}}
		conn, err := d.Dial(v.Protocol.String(), netip.AddrPortFrom(v.Addr, v.Port).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(wait))
		if v.Protocol == intercept.UDP {
			if _, err := conn.Write([]byte("?")); err != nil {
				return err
			}
		}
		buf := make([]byte, 100)
		n, err := conn.Read(buf)
		answer = string(buf[:n])
		return err
	})
	return answer, err
}

func vip(addr string, port uint16, protocol intercept.Protocol) intercept.VIP {
	return intercept.VIP{Addr: netip.MustParseAddr(addr), Port: port, Protocol: protocol}
}

// holdLock takes the lock that legacy programs share, which lies in the node's own /run.
func holdLock(t *testing.T) (release func()) {
	t.Helper()
	lock, err := os.OpenFile("/run/xtables.lock", os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	return func() { lock.Close() }
}

// waiters counts the processes blocked on a lock of this node: lines such as "1: -> FLOCK ADVISORY WRITE 42 ...".
func waiters(t *testing.T) int {
	t.Helper()
	locks, err := os.ReadFile("/proc/locks")
	require.NoError(t, err)
	return strings.Count(string(locks), "-> FLOCK")
}
