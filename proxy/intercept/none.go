package intercept

import (
	"context"
	"net/netip"
)

// None steers nothing: the proxy listens on its proxy ports and clients are pointed at those. It needs no privilege.
type None struct {
	// Bind4 and Bind6 are the addresses to listen on; an invalid one means loopback of that family.
	Bind4, Bind6 netip.Addr
}

var (
	_ Interceptor = None{}
	_ Limited     = None{}
)

// Limits implements Limited. Nobody is restricted where nothing is steered.
func (None) Limits(bool) Limits { return Limits{OwnListeners: true} }

// Prepare does nothing.
func (None) Prepare(context.Context, []VIP) error { return nil }

// BindAddr returns the allocated port on the configured address of v's family.
func (n None) BindAddr(v VIP, port uint16) netip.AddrPort {
	addr, fallback := n.Bind4, netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if v.Addr.Is6() {
		addr, fallback = n.Bind6, netip.IPv6Loopback()
	}
	if !addr.IsValid() {
		addr = fallback
	}
	return netip.AddrPortFrom(addr, port)
}

// Commit does nothing.
func (None) Commit(context.Context, State) error { return nil }

// Verify is always content.
func (None) Verify(context.Context) (bool, error) { return true, nil }

// Cleanup does nothing.
func (None) Cleanup(context.Context) error { return nil }
