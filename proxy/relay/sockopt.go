package relay

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// tcpRTOMax is TCP_RTO_MAX_MS (Linux 6.15), the longest time between two retransmissions or probes, in milliseconds.
const tcpRTOMax = 44

// unansweredRTOs is how many of the longest intervals pass before the kernel gives a peer up: tcp_retries2 is 15, and
// the first few intervals are short.
const unansweredRTOs = 12

// bindTCP makes a listening socket. Accepted connections inherit its options, which costs nothing per connection.
func bindTCP(addr netip.AddrPort, cfg *Config) (int, error) {
	fd, errno := streamSocket(addr.Addr())
	if errno != 0 {
		return -1, errno
	}
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil && addr.Addr().Is6() {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	if err == nil {
		err = setNoDelay(fd)
	}
	if err == nil {
		err = setTimeouts(fd, cfg.KeepAlive, cfg.UserTimeout)
	}
	if err == nil && cfg.ListenControl != nil {
		err = cfg.ListenControl(fd, addr)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(addr))
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// setNoDelay has the kernel send each write at once: whoever made the bytes has decided already how to pack them.
func setNoDelay(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) }

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

// setListening ends listening by shutdown(2), which keeps the socket bound, and resumes it by listen(2). A socket that
// is bound but not listening would share its port with others that set SO_REUSEADDR (inet_csk_bind_conflict), so it
// goes without the option meanwhile. With it, a listener binds in spite of connections that its predecessor left.
func setListening(fd int, open bool) error {
	if open {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
		err := unix.Listen(fd, backlog)
		if err != nil {
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
		}
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0); err != nil {
		return err
	}
	return unix.Shutdown(fd, unix.SHUT_RD)
}

// abort closes a connection by a reset. Bytes not yet sent are lost.
func abort(fd int) {
	unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	closeRaw(fd)
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

// dialOver reports whether a socket that is being connected has had an answer.
func dialOver(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	n, _ := unix.Poll(fds, 0)
	return n > 0
}

// unread returns the number of bytes that can be read.
func unread(fd int) int { return queueLength(fd, unix.SIOCINQ) }

// unsent returns the number of bytes not yet acknowledged by the peer.
func unsent(fd int) int { return queueLength(fd, unix.SIOCOUTQ) }

func queueLength(fd int, request uint) int {
	n, err := unix.IoctlGetInt(fd, request)
	if err != nil {
		return 0
	}
	return n
}
