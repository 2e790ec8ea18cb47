package local

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// watch tells whether routes or addresses have changed, by a netlink socket that is only ever asked whether something
// came. It needs no goroutine: when nobody asks for long, the kernel drops notices and says so at the next read, which is
// as good as a notice.
type watch struct{ fd int }

func newWatch() (*watch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watching routes: %w", err)
	}
	const groups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watching routes: %w", err)
	}
	return &watch{fd}, nil
}

// changed reports whether something has changed since it was asked last. Changes of our own count.
func (w *watch) changed() bool {
	changed := false
	buf := make([]byte, 1) // the rest of a notice is cut off
	for {
		_, _, err := unix.Recvfrom(w.fd, buf, 0)
		switch err {
		case unix.EAGAIN:
			return changed
		case nil, unix.EINTR, unix.ENOBUFS:
			changed = true
		default:
			return true // cannot be watched: assume the worst each time
		}
	}
}

func (w *watch) close() error { return unix.Close(w.fd) }
