package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// watch tells whether routes or addresses have changed, by a netlink socket that is only ever asked whether something
// came. It needs no goroutine: when nobody asks for long, the kernel drops notices and says so at the next read, which is
// as good as a notice.
type watch struct{ fd int }

func newWatch() (*watch, error) {
	fd, err := listen(unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watching routes: %w", err)
	}
	return &watch{fd}, nil
}

// listen opens a socket, not blocking, that gets the kernel's notices.
func listen(groups uint32) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
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

// Watch calls changed when an address of the node has come or gone, until ctx ends: then clients are cut off until the
// routes have been written again, and Verify should be called at once. Routes are not watched, for theirs is a multitude on
// a node with a routing daemon, and they are no reason to hurry.
func (r *Routes) Watch(ctx context.Context, changed func()) error {
	fd, err := listen(unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	if err != nil {
		return fmt.Errorf("watching addresses: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "netlink") // not blocking, so that its deadline works
	defer socket.Close()
	stop := context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 64<<10)
	for ctx.Err() == nil {
		n, err := socket.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case errors.Is(err, unix.ENOBUFS):
			changed() // notices were lost
		case err != nil:
			return fmt.Errorf("watching addresses: %w", err)
		case concerns(buf[:n]):
			changed()
		}
	}
	return nil
}

// concerns reports whether a notice is about an address that may be a source. Link-local ones never are, and each new pod
// of a node brings one.
func concerns(notice []byte) bool {
	messages, err := syscall.ParseNetlinkMessage(notice)
	if err != nil {
		return true
	}
	for _, m := range messages {
		// struct ifaddrmsg: family, prefix length, flags, scope.
		if len(m.Data) < 4 || m.Data[3] != unix.RT_SCOPE_LINK {
			return true
		}
	}
	return false
}
