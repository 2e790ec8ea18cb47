package relay

import (
	"context"
	"net"
	"net/netip"
	"syscall"
)

// Probe connects to a backend as connections of clients are, and closes that again at once. It is for finding out whether
// a backend that failed is back, and waits until ctx ends.
func (r *Relay) Probe(ctx context.Context, backend netip.AddrPort) error {
	d := net.Dialer{KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if mark := r.cfg.Mark; mark != 0 {
			if cerr := c.Control(func(fd uintptr) { err = setMark(int(fd), mark) }); cerr != nil {
				return cerr
			}
		}
		return err
	}}
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(ctx, "tcp", backend.String())
	if err != nil {
		return err
	}
	// By a reset, so that no port of ours waits in TIME_WAIT for it.
	conn.(*net.TCPConn).SetLinger(0)
	return conn.Close()
}
