package relay

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// reservedFDs are left for everything that is not a listener or a connection: logs, the admin socket, iptables' pipes,
// the API client.
const reservedFDs = 64

// fdsPerLoop are an epoll descriptor and a bell each for TCP and UDP.
const fdsPerLoop = 4

// RaiseNoFile raises the process's soft limit of open file descriptors to its hard limit and returns it. The Go runtime
// does so too, but lowers it again for the children it starts and gives no error.
func RaiseNoFile() (int, error) {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 0, fmt.Errorf("reading the file descriptor limit: %w", err)
	}
	if lim.Cur < lim.Max {
		lim.Cur = lim.Max
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
			return 0, fmt.Errorf("raising the file descriptor limit to %d: %w", lim.Max, err)
		}
	}
	return noFileLimit(), nil
}

func noFileLimit() int {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 1024
	}
	return int(min(lim.Cur, 1<<30))
}

// ephemeralPorts is the number of ports that the kernel gives to sockets that ask for none; its default if it does not say.
func ephemeralPorts() int {
	first, last := 32768, 60999
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		fmt.Sscan(string(text), &first, &last)
	}
	return max(last-first+1, 1)
}
