package relay

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// reservedFDs are left for everything that is not a listener or a connection: logs, the admin socket, iptables' pipes,
// the API client.
const reservedFDs = 64

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
