package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// reply is what became of a short connection.
type reply struct {
	port    uint16        // of the endpoint
	connect time.Duration // until the connection stood: what the first packet took
	whole   time.Duration // until the endpoint's answer was there
}

// errSilent is that nothing has come within the patience.
var errSilent = errors.New("no answer")

// shortConnection connects and reads the answer. It belongs to the network of the calling thread.
func shortConnection(to netip.AddrPort, patience time.Duration) (reply, error) {
	var a reply
	fd, err := tcpSocket()
	if err != nil {
		return a, err
	}
	defer rawClose(fd)
	start := time.Now()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil && err != unix.EINPROGRESS {
		return a, fmt.Errorf("connecting to %s: %w", to, err)
	}
	if err := await(fd, unix.POLLOUT, start.Add(patience)); err != nil {
		return a, fmt.Errorf("connecting to %s: %w", to, err)
	}
	a.connect = time.Since(start)
	// Who has got so far is not to be given up so soon.
	if err := await(fd, unix.POLLIN, start.Add(max(patience, time.Second))); err != nil {
		return a, fmt.Errorf("reading from %s: %w", to, err)
	}
	var b [2]byte
	n, errno := rawRead(fd, b[:])
	if errno != 0 || n != len(b) {
		return a, fmt.Errorf("reading from %s: %d bytes: %w", to, n, errno)
	}
	a.port, a.whole = binary.BigEndian.Uint16(b[:]), time.Since(start)
	return a, nil
}

func await(fd int, events int16, deadline time.Time) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}}
	for {
		timeout := unix.NsecToTimespec(max(0, time.Until(deadline).Nanoseconds()))
		n, err := unix.Ppoll(fds, &timeout, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return errSilent
		default:
			if code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
				return errors.Join(err, unix.Errno(code))
			}
			return nil
		}
	}
}

func scalePeerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "scale-peer",
		Short:  "Answers every connection with the port that it came to",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			failed := make(chan error)
			for i := range endpointPortCount {
				go func() { failed <- scalePeer(endpointPorts + i) }()
			}
			return <-failed
		},
	}
}

// endpointPortCount is how many ports endpoints listen on: two generations of two.
const endpointPortCount = 4

func scalePeer(port int) error {
	quietly()
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(listener, &unix.SockaddrInet4{Port: port}); err != nil {
		return fmt.Errorf("binding port %d: %w", port, err)
	}
	if err := unix.Listen(listener, 65535); err != nil {
		return fmt.Errorf("listening on port %d: %w", port, err)
	}
	b := binary.BigEndian.AppendUint16(nil, uint16(port))
	for {
		conn, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if err != nil {
			continue // the client has left
		}
		rawWrite(conn, b)
		rawClose(conn)
	}
}
