package local

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

const (
	// mostVIPs bounds the VIPs that share. Until there are as many, the kernel needs 16 bytes for each.
	mostVIPs = 1 << 18
	// mostSockets bounds the sockets that are shared.
	mostSockets = 256
	// noSocket is the slot of VIPs whose clients are refused.
	noSocket = ^uint32(0)
)

// lookup has the kernel give connections to VIPs to sockets that listen elsewhere: by a program that it runs where it looks for
// a listening socket (BPF_PROG_TYPE_SK_LOOKUP, Linux 5.9). All of it ends with the process.
type lookup struct {
	vips    *ebpf.Map // which slot each VIP has
	sockets *ebpf.Map // by slot; what is closed leaves it by itself
	program *ebpf.Program
	link    link.Link // to this network namespace; nil: none
}

// newLookup loads one for so many VIPs. It is not attached.
func newLookup(mostVIPs int) (*lookup, error) {
	l := &lookup{}
	if err := l.load(mostVIPs); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *lookup) load(mostVIPs int) (err error) {
	l.vips, err = newMap(&ebpf.MapSpec{
		Name: "redial_vips", Type: ebpf.Hash, KeySize: 20, ValueSize: 4, MaxEntries: uint32(mostVIPs), Flags: unix.BPF_F_NO_PREALLOC,
	})
	if err != nil {
		return err
	}
	l.sockets, err = newMap(&ebpf.MapSpec{
		Name: "redial_sockets", Type: ebpf.SockMap, KeySize: 4, ValueSize: 4, MaxEntries: mostSockets,
	})
	if err != nil {
		return err
	}
	if l.program, err = ebpf.NewProgram(program(l.vips, l.sockets)); err != nil {
		return fmt.Errorf("loading a BPF program: %w%s", err, adviceOn(err))
	}
	return nil
}

// newMap tries a second time without a limit on locked memory, which kernels before 5.11 charge maps to.
func newMap(spec *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(spec)
	if errors.Is(err, unix.EPERM) {
		unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
		if unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unlimited) == nil {
			m, err = ebpf.NewMap(spec)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("making a BPF map: %w%s", err, adviceOn(err))
	}
	return m, nil
}

func adviceOn(err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return ": it takes CAP_BPF and CAP_NET_ADMIN, or root outside of user namespaces"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, ebpf.ErrNotSupported):
		return ": it takes Linux 5.9 or later with CONFIG_BPF_SYSCALL, and before 5.13 with CONFIG_BPF_STREAM_PARSER"
	}
	return ""
}

// probeLookup reports whether all this works here, by doing it for a moment with nothing in the map.
func probeLookup() error {
	l, err := newLookup(1)
	if err != nil {
		return err
	}
	return errors.Join(l.attach(), l.close())
}

// attach has the program run, unless it does.
func (l *lookup) attach() error {
	if l.attached() {
		return nil
	}
	if err := l.detach(); err != nil {
		return err
	}
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("attaching a BPF program: %w", err)
	}
	defer ns.Close()
	attached, err := link.AttachNetNs(int(ns.Fd()), l.program)
	if err != nil {
		return fmt.Errorf("attaching a BPF program to this network namespace: %w%s", err, adviceOn(err))
	}
	l.link = attached
	return nil
}

// attached reports whether the program runs: somebody may have detached it.
func (l *lookup) attached() bool {
	if l.link == nil {
		return false
	}
	info, err := l.link.Info()
	if err != nil {
		return false
	}
	ns := info.NetNs()
	return ns != nil && ns.NetnsInode != 0
}

func (l *lookup) detach() error {
	if l.link == nil {
		return nil
	}
	err := l.link.Close()
	l.link = nil
	if err != nil {
		return fmt.Errorf("detaching a BPF program: %w", err)
	}
	return nil
}

// share puts a listening socket in a slot.
func (l *lookup) share(slot uint32, fd int) error {
	if err := l.sockets.Put(slot, uint32(fd)); err != nil {
		return fmt.Errorf("putting a listening socket in a BPF map: %w", err)
	}
	return nil
}

// steer has clients of a VIP come to the socket in a slot. It takes effect at once.
func (l *lookup) steer(to netip.AddrPort, slot uint32) error {
	err := l.vips.Put(keyOf(to), slot)
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("%d addresses share listeners, as many as can: raise the limit of file descriptors (ulimit -n), so that fewer have to: %w", l.vips.MaxEntries(), err)
	}
	if err != nil {
		return fmt.Errorf("putting it in a BPF map: %w", err)
	}
	return nil
}

func (l *lookup) forget(to netip.AddrPort) error {
	if err := l.vips.Delete(keyOf(to)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("removing %s from a BPF map: %w", to, err)
	}
	return nil
}

func (l *lookup) close() error {
	err := l.detach()
	if l.program != nil {
		err = errors.Join(err, l.program.Close())
	}
	for _, m := range []*ebpf.Map{l.vips, l.sockets} {
		if m != nil {
			err = errors.Join(err, m.Close())
		}
	}
	return err
}
