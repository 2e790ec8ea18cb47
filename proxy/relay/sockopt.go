package relay

import (
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tcpRTOMax is TCP_RTO_MAX_MS (Linux 6.15), the longest time between two retransmissions or probes, in milliseconds.
const tcpRTOMax = 44

// unansweredRTOs is how many of the longest intervals pass before the kernel gives a peer up: tcp_retries2 is 15, and
// the first few intervals are short.
const unansweredRTOs = 12

// tcpClose is TCP_CLOSE of the kernel's tcp_states.h.
const tcpClose = 7

// listenOptions sets what accepted connections inherit, which costs nothing per connection.
func (r *Relay) listenOptions(addr netip.AddrPort) func(_, _ string, raw syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		return control(raw, func(fd int) error {
			if r.cfg.ListenControl != nil {
				if err := r.cfg.ListenControl(fd, addr); err != nil {
					return err
				}
			}
			return setTimeouts(fd, r.cfg.KeepAlive, r.cfg.UserTimeout)
		})
	}
}

// dialOptions prepares a backend socket before it connects.
func (r *Relay) dialOptions(_, _ string, raw syscall.RawConn) error {
	return control(raw, func(fd int) error {
		if r.cfg.Mark != 0 {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(r.cfg.Mark)); err != nil {
				return err
			}
		}
		return setTimeouts(fd, r.cfg.KeepAlive, r.cfg.UserTimeout)
	})
}

// setTimeouts bounds how long a peer that has vanished keeps its connection: by keep-alive while nothing is under way, by
// the limit on retransmissions while something is.
//
// TCP_USER_TIMEOUT is made for the latter, but the kernel applies it to a closed window too, even while the peer
// acknowledges every probe (tcp_probe_timer): a download that is paused for so long would be cut. Shorter intervals
// bring the kernel's limit of 15 unanswered ones nearer instead, and any answer starts the count again. Kernels without
// that option keep their limit of about 15 minutes.
func setTimeouts(fd int, keepAlive, user time.Duration) error {
	seconds := max(int(keepAlive/time.Second), 1)
	interval := min(max(user/unansweredRTOs, time.Second), 2*time.Minute)
	err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, tcpRTOMax, int(interval/time.Millisecond))
	if err != nil && err != unix.ENOPROTOOPT {
		return err
	}
	for _, o := range []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, seconds},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, min(max(int(user/keepAlive), 1), 127)},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return err
		}
	}
	return nil
}

func control(raw syscall.RawConn, f func(fd int) error) error {
	var err error
	if cerr := raw.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// abort closes conn by a reset. Bytes not yet sent are lost.
func abort(conn *net.TCPConn) {
	conn.SetLinger(0)
	conn.Close()
}

// peerGone reports whether the connection has been reset or timed out. A FIN alone, even in both directions, is not
// that.
func peerGone(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd)}}
	for {
		n, err := unix.Poll(fds, 0)
		if err == unix.EINTR {
			continue
		}
		return err == nil && n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
	}
}

// wasReset tells the end of a stream by reset from the end by FIN, after read(2) returned 0 for both: another call on
// the socket may have collected the error. It holds only while the connection's own FIN has not been sent, since
// after that a socket in TIME_WAIT is TCP_CLOSE too (tcp_time_wait).
func wasReset(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.State == tcpClose
}

// unsent returns the number of bytes not yet acknowledged by the peer.
func unsent(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}
