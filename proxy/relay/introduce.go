package relay

import (
	"net"

	"github.com/pires/go-proxyproto"
	"golang.org/x/sys/unix"
)

// introduce tells a backend who the client is and whom it has dialled, in a PROXY protocol header. That is not a byte of
// the client's: a backend that leaves after it has left early. It returns false if it has cut the connection, whose client
// is not known any more: the backend would take the relay for the client.
func (c *conn) introduce() bool {
	from, to := nameOf(unix.SYS_GETPEERNAME, c.client.fd), c.destination()
	if !from.IsValid() || !to.IsValid() {
		c.broken = true
		c.abort()
		return false
	}
	header, err := proxyproto.HeaderProxyFromAddrs(c.settings.ProxyProtocol, net.TCPAddrFromAddrPort(from), net.TCPAddrFromAddrPort(to)).Format()
	if err != nil {
		c.listener.log().WithError(err).Error("cannot write a PROXY protocol header, cutting a connection")
		c.abort()
		return false
	}
	// The send buffer is empty, so that there is room for all of it.
	if n, errno := writeRaw(c.backend.fd, header); errno != 0 || n < len(header) {
		c.backend.gone = true
	}
	c.backend.written = true // what comes next is not to wait for the acknowledgement of this
	return true
}
