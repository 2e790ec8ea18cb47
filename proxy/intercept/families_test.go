package intercept

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
)

// half records what it is asked for, and answers as it is told.
type half struct {
	None
	prepared []VIP
	state    State
	err      error
	broken   bool
	cleaned  bool
}

func (h *half) Prepare(_ context.Context, vips []VIP) error { h.prepared = vips; return h.err }
func (h *half) Commit(_ context.Context, want State) error  { h.state = want; return h.err }
func (h *half) Verify(context.Context) (bool, error)        { return !h.broken, h.err }
func (h *half) Cleanup(context.Context) error               { h.cleaned = true; return h.err }
func (h *half) Limits(v6 bool) Limits                       { return Limits{Refuses: v6} }
func (h *half) BindAddr(v VIP, port uint16) netip.AddrPort  { return netip.AddrPortFrom(v.Addr, port+1) }
func vipAt(addr string) VIP                                 { return VIP{Addr: netip.MustParseAddr(addr), Port: 80, Protocol: TCP} }
func bindingAt(addr string) Binding                         { return Binding{VIP: vipAt(addr)} }
func both() (four, six *half, f Families) {
	four, six = &half{}, &half{}
	return four, six, Families{four, six}
}

func TestFamilies(t *testing.T) {
	ctx := t.Context()
	four, six, f := both()
	assert.NoError(t, f.Prepare(ctx, []VIP{vipAt("198.18.0.1"), vipAt("2001:db8::1"), vipAt("::")}))
	assert.Equal(t, []VIP{vipAt("198.18.0.1")}, four.prepared)
	assert.Equal(t, []VIP{vipAt("2001:db8::1"), vipAt("::")}, six.prepared)

	want := State{Bindings: []Binding{bindingAt("2001:db8::1"), bindingAt("198.18.0.1")}, NodePorts: []netip.Prefix{}, HealthChecks: []uint16{30000}}
	four.err = errors.New("no luck")
	assert.ErrorIs(t, f.Commit(ctx, want), four.err)
	for h, addr := range map[*half]string{four: "198.18.0.1", six: "2001:db8::1"} {
		expected := want
		expected.Bindings = []Binding{bindingAt(addr)}
		assert.True(t, h.state.Equal(expected), "one family does not hold up the other: %v", h.state)
	}
	_, err := f.Verify(ctx)
	assert.ErrorIs(t, err, four.err)
	assert.ErrorIs(t, f.Cleanup(ctx), four.err)
	assert.True(t, four.cleaned && six.cleaned)

	four.err = nil
	intact, err := f.Verify(ctx)
	assert.True(t, intact && err == nil)
	six.broken = true
	intact, err = f.Verify(ctx)
	assert.True(t, !intact && err == nil)

	assert.Equal(t, Limits{}, LimitsOf(f, false))
	assert.Equal(t, Limits{Refuses: true}, LimitsOf(f, true))
	f.IPv4 = None{}
	assert.Equal(t, "127.0.0.1:7", f.BindAddr(vipAt("198.18.0.1"), 7).String())
	assert.Equal(t, "[2001:db8::1]:8", f.BindAddr(vipAt("2001:db8::1"), 7).String())
}

// sharer is given listeners, and says where.
type sharer struct {
	None
	unable error
	given  []netip.AddrPort
}

func (s *sharer) Shares(bool) error { return s.unable }

func (s *sharer) Share(addr netip.AddrPort, _ int) error {
	s.given = append(s.given, addr)
	return s.unable
}

func TestFamiliesShare(t *testing.T) {
	addr4, addr6 := netip.MustParseAddrPort("127.0.0.1:7"), netip.MustParseAddrPort("[::1]:7")
	four := &sharer{}
	f := Families{IPv4: four, IPv6: None{}}
	_, err := SharerOf(f, true)
	assert.Error(t, err)
	assert.Error(t, f.Share(addr6, 3))
	_, err = SharerOf(f, false)
	assert.NoError(t, err)
	assert.NoError(t, f.Share(addr4, 3))
	assert.Equal(t, []netip.AddrPort{addr4}, four.given)

	f.IPv6 = &sharer{unable: errors.New("no luck")}
	_, err = SharerOf(f, true)
	assert.ErrorContains(t, err, "no luck")
}
