// Package lab builds networks of namespaces in which a Service proxy can be tried: a node, pods and clients joined by
// veth pairs, sharing nothing with the machine's own network, processes or lock files.
//
// A process becomes the node by running in fresh namespaces ([Isolate] on its command line, then [NewNode] inside). In a
// test, [Run] does both: it re-executes the test binary for that one test.
//
//	func TestSomething(t *testing.T) {
//		lab.Run(t, func(t *testing.T, node *lab.Host) {
//			pod, err := node.AddHost("pod1", "198.18.1.2/24", "2001:db8:1::2/64")
//			require.NoError(t, err)
//			err = pod.Do(func() error { ... net.Listen ... }) // sockets made here belong to the pod
//			out, err := pod.Output("curl", "-s", "http://198.18.0.10/")
//		})
//	}
//
// Everything ends with the node's process, since it is the init of its own PID namespace.
package lab

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Host is one network namespace: the node itself, or a pod or client attached to it.
type Host struct {
	Name string
	// Uplink is the node's end of the veth pair; empty for the node itself.
	Uplink string
	ns     netns.NsHandle
	own    bool // the namespace of this process: nothing to switch to
}

// Do runs fn with the calling thread in the host's namespace. Sockets opened and processes started by fn belong to the
// host for good; goroutines started by fn do not, so fn has to open its sockets itself.
func (h *Host) Do(fn func() error) error {
	if h.own {
		return fn()
	}
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("entering %s: %w", h.Name, err)
	}
	defer home.Close()
	if err := netns.Set(h.ns); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("entering %s: %w", h.Name, err)
	}
	err = fn()
	if back := netns.Set(home); back != nil {
		// The thread stays locked, so that the runtime discards it with its goroutine instead of reusing it.
		return fmt.Errorf("leaving %s: %w", h.Name, back)
	}
	runtime.UnlockOSThread()
	return err
}

// Start starts cmd inside the host.
func (h *Host) Start(cmd *exec.Cmd) error { return h.Do(cmd.Start) }

// Output runs a command inside the host and returns what it printed on both streams. The error, if any, includes it.
func (h *Host) Output(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	var out []byte
	err := h.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	if err != nil {
		err = fmt.Errorf("%s on %s: %w: %s", cmd, h.Name, err, out)
	}
	return string(out), err
}

// AddHost attaches a new host to the node. Each prefix ("198.18.1.2/24", "2001:db8:1::2/64") is an address of the host;
// the node takes the first address of the same subnet and is the host's gateway. Hosts of one node reach each other
// through it.
func (h *Host) AddHost(name string, prefixes ...string) (*Host, error) {
	host := &Host{Name: name, Uplink: "to-" + name}
	if err := host.attach(h, prefixes); err != nil {
		return nil, fmt.Errorf("attaching %s to %s: %w", name, h.Name, err)
	}
	return host, nil
}

func (h *Host) attach(node *Host, prefixes []string) (err error) {
	if h.ns, err = newNamespace(); err != nil {
		return err
	}
	pair := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: h.Uplink},
		PeerName:      "eth0",
		PeerNamespace: netlink.NsFd(h.ns),
	}
	return node.Do(func() error {
		if err := netlink.LinkAdd(pair); err != nil {
			return fmt.Errorf("adding the veth pair: %w", err)
		}
		var gateways []netip.Addr
		for _, s := range prefixes {
			prefix, err := netip.ParsePrefix(s)
			if err != nil {
				return err
			}
			gateway := prefix.Masked().Addr().Next()
			gateways = append(gateways, gateway)
			if err := addAddress(h.Uplink, netip.PrefixFrom(gateway, prefix.Bits())); err != nil {
				return err
			}
		}
		if err := linkUp(h.Uplink); err != nil {
			return err
		}
		if err := h.Do(func() error { return configure(prefixes, gateways) }); err != nil {
			return err
		}
		if err := waitUp(h.Uplink); err != nil {
			return err
		}
		return h.Do(func() error { return waitUp("eth0") })
	})
}

// waitUp waits until the kernel has noticed the carrier: until then it drops what is sent, silently.
func waitUp(device string) error {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return fmt.Errorf("interface %s: %w", device, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
	}
	return fmt.Errorf("interface %s: no carrier", device)
}

// configure runs inside the new host.
func configure(prefixes []string, gateways []netip.Addr) error {
	if err := linkUp("lo"); err != nil {
		return err
	}
	for _, s := range prefixes {
		if err := addAddress("eth0", netip.MustParsePrefix(s)); err != nil {
			return err
		}
	}
	if err := linkUp("eth0"); err != nil {
		return err
	}
	for _, g := range gateways {
		if err := netlink.RouteAdd(&netlink.Route{Gw: net.IP(g.AsSlice())}); err != nil {
			return fmt.Errorf("adding the default route via %s: %w", g, err)
		}
	}
	return nil
}

// AddAddress gives the node or host one more address on one of its interfaces.
func (h *Host) AddAddress(device, prefix string) error {
	p, err := netip.ParsePrefix(prefix)
	if err != nil {
		return err
	}
	return h.Do(func() error { return addAddress(device, p) })
}

func addAddress(device string, p netip.Prefix) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("interface %s: %w", device, err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{
		IP:   p.Addr().AsSlice(),
		Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
	}}
	if p.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD // usable at once
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("adding %s to %s: %w", p, device, err)
	}
	return nil
}

func linkUp(device string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("interface %s: %w", device, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting %s up: %w", device, err)
	}
	return nil
}

// newNamespace makes a network namespace and returns to the one of the caller.
func newNamespace() (netns.NsHandle, error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return 0, err
	}
	defer home.Close()
	ns, err := netns.New()
	if err != nil {
		runtime.UnlockOSThread()
		return 0, fmt.Errorf("new network namespace: %w", err)
	}
	dad := skipDAD()
	if err := netns.Set(home); err != nil {
		return 0, err // the thread stays locked and is discarded
	}
	runtime.UnlockOSThread()
	return ns, dad
}

// skipDAD makes IPv6 addresses of interfaces yet to come usable at once: duplicate address detection takes 2 s, and
// until the link-local address is through it neighbours are not answered.
func skipDAD() error { return sysctl("ipv6/conf/default/accept_dad", "0") }

func sysctl(key, value string) error {
	if err := os.WriteFile("/proc/sys/net/"+key, []byte(value), 0o644); err != nil {
		return fmt.Errorf("sysctl %s: %w", key, err)
	}
	return nil
}

// NewNode turns the process, started by a command that [Isolate] prepared, into the node of a new network: loopback up,
// forwarding on, its own /proc, /sys and /run (where iptables keeps its lock), and a default route for each family, so
// that its own connections to virtual addresses get as far as the OUTPUT hook.
func NewNode() (*Host, error) {
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
	}{
		{"none", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"sysfs", "/sys", "sysfs", 0},
		{"tmpfs", "/run", "tmpfs", 0},
	} {
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, ""); err != nil {
			return nil, fmt.Errorf("mounting %s: %w", m.target, err)
		}
	}
	node := &Host{Name: "node", own: true}
	if err := linkUp("lo"); err != nil {
		return nil, err
	}
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := sysctl(key, "1"); err != nil {
			return nil, err
		}
	}
	if err := skipDAD(); err != nil {
		return nil, err
	}
	uplink, err := node.AddHost("world", "198.18.255.2/24", "2001:db8:ff::2/64")
	if err != nil {
		return nil, err
	}
	for _, gateway := range []string{"198.18.255.2", "2001:db8:ff::2"} {
		if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gateway)}); err != nil {
			return nil, fmt.Errorf("default route via %s on %s: %w", gateway, uplink.Uplink, err)
		}
	}
	return node, nil
}
