package lab

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

// NewHost makes a host that is attached to nothing: only its loopback is up. [Host.Join] attaches it.
func NewHost(name string) (*Host, error) {
	ns, err := newNamespace()
	if err != nil {
		return nil, fmt.Errorf("making %s: %w", name, err)
	}
	h := &Host{Name: name, ns: ns}
	if err := h.Do(func() error { return linkUp("lo") }); err != nil {
		return nil, fmt.Errorf("making %s: %w", name, err)
	}
	return h, nil
}

// Join connects the host to a peer, made by NewHost or AddHost, by a veth pair without addresses. mac is the hardware
// address of the host's end, and with it its link-local IPv6 address; nil for a random one.
func (h *Host) Join(device string, peer *Host, peerDevice string, mac net.HardwareAddr) error {
	pair := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: device, HardwareAddr: mac},
		PeerName:      peerDevice,
		PeerNamespace: netlink.NsFd(peer.ns),
	}
	err := h.Do(func() error {
		if err := netlink.LinkAdd(pair); err != nil {
			return fmt.Errorf("adding the veth pair: %w", err)
		}
		return linkUp(device)
	})
	if err == nil {
		err = peer.Do(func() error { return linkUp(peerDevice) })
	}
	if err == nil {
		err = h.Do(func() error { return waitUp(device) })
	}
	if err == nil {
		err = peer.Do(func() error { return waitUp(peerDevice) })
	}
	if err != nil {
		return fmt.Errorf("joining %s and %s: %w", h.Name, peer.Name, err)
	}
	return nil
}

// Sysctl sets a value below /proc/sys/net of the host, such as "ipv4/ip_forward".
func (h *Host) Sysctl(key, value string) error {
	return h.Do(func() error { return sysctl(key, value) })
}
