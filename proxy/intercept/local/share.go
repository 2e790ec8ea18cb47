package local

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"redial/proxy/intercept"
)

// shared is which VIPs share listening sockets.
type shared struct {
	unable error // why none can; nil: they can
	lookup *lookup
	slots  map[netip.AddrPort]uint32 // of the sockets, by where they listen
}

var errNotProbed = errors.New("it was not found out whether VIPs can share listeners")

// Shares implements intercept.Sharer.
func (r *Routes) Shares(bool) error { return r.shared.unable }

// Share implements intercept.Sharer. Nothing of BPF is there before the first call, but for what New has tried.
func (r *Routes) Share(addr netip.AddrPort, fd int) error {
	s := &r.shared
	if err := s.load(); err != nil {
		return err
	}
	slot, known := s.slots[addr]
	if !known {
		slot = uint32(len(s.slots))
	}
	if err := s.lookup.share(slot, fd); err != nil {
		return err
	}
	s.slots[addr] = slot
	return nil
}

// BindAddr returns the VIP itself; for a NodePort that is the wildcard address. Given a proxy port, which VIPs of TCP share, it
// is that port of the loopback address: nobody comes to it but by a look-up.
func (*Routes) BindAddr(v intercept.VIP, port uint16) netip.AddrPort {
	if port == 0 || v.NodePort() || v.Protocol != intercept.TCP {
		return netip.AddrPortFrom(v.Addr, v.Port)
	}
	if v.Addr.Is6() {
		return netip.AddrPortFrom(netip.IPv6Loopback(), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
}

// sharing reports whether b is to share a listener, rather than have its own.
func (r *Routes) sharing(b intercept.Binding) bool {
	return b.Listen.IsValid() && b.Listen != r.BindAddr(b.VIP, 0) && b.Listen == r.BindAddr(b.VIP, b.Listen.Port())
}

// dialledBy is what the clients of a VIP dial.
func dialledBy(v intercept.VIP) netip.AddrPort { return netip.AddrPortFrom(v.Addr, v.Port) }

// slot is where the clients of b are to go.
func (s *shared) slot(b intercept.Binding) uint32 {
	if slot, ok := s.slots[b.Listen]; ok {
		return slot
	}
	return noSocket
}

// steer leads the clients of those that share to their listeners, and returns the bindings that are in force, and an error
// for each of the others.
func (r *Routes) steer(f *family, bindings []intercept.Binding) (inForce []intercept.Binding, errs []error) {
	var attached error
	if slices.ContainsFunc(bindings, r.sharing) {
		attached = r.shared.attach()
	}
	for _, b := range bindings {
		if r.sharing(b) {
			err := attached
			if err == nil {
				err = r.shared.steer(f, b)
			}
			if err != nil {
				errs = append(errs, &intercept.BindingError{Binding: b, Err: err})
				continue
			}
		}
		inForce = append(inForce, b)
	}
	return inForce, errs
}

// load makes what it takes, unless it is there.
func (s *shared) load() (err error) {
	if s.unable != nil {
		return s.unable
	}
	if s.lookup == nil {
		s.lookup, err = newLookup(mostVIPs)
	}
	return err
}

func (s *shared) attach() error {
	if err := s.load(); err != nil {
		return err
	}
	return s.lookup.attach()
}

func (s *shared) steer(f *family, b intercept.Binding) error {
	to, slot := dialledBy(b.VIP), s.slot(b)
	if now, ok := f.shared[to]; ok && now == slot {
		return nil
	}
	if err := s.lookup.steer(to, slot); err != nil {
		return err
	}
	f.shared[to] = slot
	f.assigned++
	return nil
}

// forget ends that for VIPs other than these.
func (s *shared) forget(f *family, wanted map[netip.AddrPort]bool) error {
	var errs []error
	for _, to := range slices.SortedFunc(maps.Keys(f.shared), netip.AddrPort.Compare) {
		if wanted[to] {
			continue
		}
		if err := s.lookup.forget(to); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(f.shared, to)
		f.assigned++
	}
	return errors.Join(errs...)
}

// inForce reports whether those that share are led to their listeners.
func (s *shared) inForce(f *family) bool { return len(f.shared) == 0 || s.lookup.attached() }

// close has the kernel forget it all.
func (s *shared) close() error {
	if s.lookup == nil {
		return nil
	}
	return s.lookup.close()
}
