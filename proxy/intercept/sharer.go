package intercept

import (
	"errors"
	"net/netip"
)

// Sharer is an [Interceptor] that redirects nothing (Limits.OwnListeners) and can have many VIPs share a listening socket all
// the same: it is given the socket, and has the kernel give it their connections. Each of these has the VIP that its client has
// dialled as its own address (getsockname).
//
// For a VIP that can share, BindAddr then answers to port 0 where a listener of its own is to be, and to a proxy port where a
// shared one of that port is to be.
type Sharer interface {
	// Shares returns why VIPs of TCP cannot share, in the family of IPv6 or in the other; nil: they can. The answer is always
	// the same.
	Shares(v6 bool) error
	// Share hands over a socket that listens at addr, an answer of BindAddr. The descriptor is used during the call only. A
	// Commit then leads the clients of each Binding whose Listen is addr to it, until the socket is closed or stops to listen;
	// and refuses clients where Listen is such an answer too, and no socket is there.
	Share(addr netip.AddrPort, fd int) error
}

// SharerOf returns a back end as one that can have VIPs of a family share. The error says why it cannot.
func SharerOf(i Interceptor, v6 bool) (Sharer, error) {
	s, ok := i.(Sharer)
	if !ok {
		return nil, errors.New("the way of interception has each listen for itself")
	}
	if err := s.Shares(v6); err != nil {
		return nil, err
	}
	return s, nil
}
