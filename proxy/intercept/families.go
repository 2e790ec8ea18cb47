package intercept

import (
	"context"
	"errors"
	"net/netip"
)

// Families steers each family by a back end of its own, for nodes on which none does both.
type Families struct {
	IPv4, IPv6 Interceptor
}

var (
	_ Interceptor = Families{}
	_ Limited     = Families{}
	_ Sharer      = Families{}
)

func (f Families) of(v6 bool) Interceptor {
	if v6 {
		return f.IPv6
	}
	return f.IPv4
}

// each calls do for each family. What happens to one does not hold up the other.
func (f Families) each(do func(i Interceptor, v6 bool) error) error {
	return errors.Join(do(f.IPv4, false), do(f.IPv6, true))
}

// Limits implements Limited.
func (f Families) Limits(v6 bool) Limits { return LimitsOf(f.of(v6), v6) }

// Shares implements Sharer.
func (f Families) Shares(v6 bool) error {
	_, err := SharerOf(f.of(v6), v6)
	return err
}

// Share implements Sharer.
func (f Families) Share(addr netip.AddrPort, fd int) error {
	v6 := addr.Addr().Is6()
	s, err := SharerOf(f.of(v6), v6)
	if err != nil {
		return err
	}
	return s.Share(addr, fd)
}

// Prepare implements Interceptor.
func (f Families) Prepare(ctx context.Context, vips []VIP) error {
	return f.each(func(i Interceptor, v6 bool) error {
		var of []VIP
		for _, v := range vips {
			if v.Addr.Is6() == v6 {
				of = append(of, v)
			}
		}
		return i.Prepare(ctx, of)
	})
}

// BindAddr implements Interceptor.
func (f Families) BindAddr(v VIP, port uint16) netip.AddrPort {
	return f.of(v.Addr.Is6()).BindAddr(v, port)
}

// Commit implements Interceptor.
func (f Families) Commit(ctx context.Context, want State) error {
	return f.each(func(i Interceptor, v6 bool) error {
		of := want
		of.Bindings = nil
		for _, b := range want.Bindings {
			if b.VIP.Addr.Is6() == v6 {
				of.Bindings = append(of.Bindings, b)
			}
		}
		return i.Commit(ctx, of)
	})
}

// Verify implements Interceptor.
func (f Families) Verify(ctx context.Context) (bool, error) {
	intact := true
	err := f.each(func(i Interceptor, _ bool) error {
		ok, err := i.Verify(ctx)
		intact = intact && ok
		return err
	})
	return intact && err == nil, err
}

// Cleanup implements Interceptor.
func (f Families) Cleanup(ctx context.Context) error {
	return f.each(func(i Interceptor, _ bool) error { return i.Cleanup(ctx) })
}
