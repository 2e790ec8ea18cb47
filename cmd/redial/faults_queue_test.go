package main

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fillPatience is for a SYN that finds no room in a queue: it is not answered.
const fillPatience = 100 * time.Millisecond

// fillQueue connects to a backend that accepts nothing until its queue is full. What it has made says nothing and is closed by
// the returned function.
func (b *faultyBackend) fillQueue() (empty func()) {
	b.t.Helper()
	var fillers []net.Conn
	for before := b.overflows(); b.overflows() == before; {
		var conn net.Conn
		err := b.host.Do(func() (err error) {
			conn, err = net.DialTimeout("tcp", "127.0.0.1:8080", fillPatience)
			return err
		})
		if err == nil {
			fillers = append(fillers, conn)
		}
	}
	return func() {
		for _, conn := range fillers {
			conn.Close()
		}
	}
}

// queued is how many connections wait to be accepted.
func (b *faultyBackend) queued() (n int) {
	b.t.Helper()
	raw, err := b.listener.(*net.TCPListener).SyscallConn()
	require.NoError(b.t, err)
	var info *unix.TCPInfo
	require.NoError(b.t, raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO) }))
	require.NoError(b.t, err)
	return int(info.Unacked) // of a listening socket, its queue's length (tcp_get_info)
}

// overflows is how many connections there was no room for in the accept queue.
func (b *faultyBackend) overflows() (n int) {
	b.t.Helper()
	require.NoError(b.t, b.host.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netstat")
		if err != nil {
			return err
		}
		names, values, _ := strings.Cut(string(text), "\n")
		i := slices.Index(strings.Fields(names), "ListenDrops")
		if f := strings.Fields(values); i > 0 && i < len(f) {
			n, err = strconv.Atoi(f[i])
			return err
		}
		return fmt.Errorf("no ListenDrops in %q", names)
	}))
	return n
}
