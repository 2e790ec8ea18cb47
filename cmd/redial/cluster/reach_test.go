package cluster

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"redial/proxy/intercept/lab"
)

// vips are the addresses of a Service's first TCP and first UDP port, by family.
func vips(svc *v1.Service) []target {
	var all []target
	for _, ip := range svc.Spec.ClusterIPs {
		all = append(all, targets(svc, netip.MustParseAddr(ip), false)...)
	}
	return all
}

// nodePorts are the same for NodePorts of a node.
func nodePorts(svc *v1.Service, node *Node) []target {
	var all []target
	for _, a := range node.Addrs {
		all = append(all, targets(svc, a, true)...)
	}
	return all
}

// target is where to ask.
type target struct {
	network string
	addr    netip.AddrPort
}

func (t target) String() string { return t.network + "/" + t.addr.String() }

// targets are an address with each of a Service's ports or NodePorts.
func targets(svc *v1.Service, ip netip.Addr, nodePort bool) []target {
	var all []target
	for _, p := range svc.Spec.Ports {
		port := p.Port
		if nodePort {
			port = p.NodePort
		}
		all = append(all, target{strings.ToLower(string(p.Protocol)), netip.AddrPortFrom(ip, uint16(port))})
	}
	return all
}

// names are those of pods.
func names(pods []v1.Pod) []string {
	var all []string
	for _, p := range pods {
		all = append(all, p.Name)
	}
	return all
}

// reaches waits until a target answers a host with exactly the pods named, each of them, and never fails.
func reaches(t *testing.T, from *lab.Host, to []target, pods ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s reaches %v", from.Name, pods), func() error {
		return each(to, func(to target) error { return reachesNow(Client{Host: from}, to, pods) })
	})
}

// each checks all targets at once, and names those that are not as they should be.
func each(to []target, check func(target) error) error {
	errs := make([]error, len(to))
	var all sync.WaitGroup
	for i, target := range to {
		all.Go(func() {
			if err := check(target); err != nil {
				errs[i] = fmt.Errorf("%s: %w", target, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// load is traffic for as long as the test runs, at most.
func load(t *testing.T, from *lab.Host, to target) *Load {
	l := Client{Host: from}.Load(to.network, to.addr, 5*time.Millisecond)
	t.Cleanup(func() { l.Stop() })
	return l
}

// reachesNow is what reaches waits for. The number of tries is the one of Kubernetes' own tests, enough for a choice by chance.
func reachesNow(c Client, to target, pods []string) error {
	seen := map[string]bool{}
	for i := range len(pods)*len(pods) + 30 {
		name, err := c.Ask(to.network, to.addr, "hostname")
		if err != nil {
			return err
		}
		if !slices.Contains(pods, name) {
			return fmt.Errorf("answered by %s", name)
		}
		seen[name] = true
		if len(seen) == len(pods) && i > 2*len(pods) {
			return nil
		}
	}
	return fmt.Errorf("only answered by %v", slices.Sorted(maps.Keys(seen)))
}

// isRefused waits until a target refuses a host's connections, or rejects its datagrams.
func isRefused(t *testing.T, from *lab.Host, to []target) {
	t.Helper()
	failsWith(t, Client{Host: from}, to, "is refused", func(err error) bool { return errors.Is(err, unix.ECONNREFUSED) || isOwnVerdict(err) })
}

// isDropped waits until what a host sends to a target gets no answer of any kind.
func isDropped(t *testing.T, from *lab.Host, to []target) {
	t.Helper()
	// Within a namespace, an answer takes a thousandth of that.
	client := Client{Host: from, Patience: 1500 * time.Millisecond}
	failsWith(t, client, to, "is left without an answer", func(err error) bool {
		var timeout net.Error
		return errors.As(err, &timeout) && timeout.Timeout() || isOwnVerdict(err)
	})
}

// isOwnVerdict says that a rule on the sender's own node stopped a datagram. The kernel tells the sender, whether the rule
// was to drop or to reject.
func isOwnVerdict(err error) bool { return errors.Is(err, unix.EPERM) }

// isUnserved waits until nobody on a host's node takes its traffic to a Service, so that it fails on the LAN.
func isUnserved(t *testing.T, from *lab.Host, to []target) {
	t.Helper()
	failsWith(t, Client{Host: from}, to, "finds no proxy", func(err error) bool {
		return errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES) // prohibited, over IPv4 and IPv6
	})
}

// failsWith waits until what the client sends fails in the right way. The kernel does not look at an ICMP error that comes
// while it is still busy with the connect; then it is the first retransmission that fails, after one second.
func failsWith(t *testing.T, client Client, to []target, what string, right func(error) bool) {
	t.Helper()
	eventually(t, client.Host.Name+" "+what, func() error {
		return each(to, func(to target) error {
			for range 2 { // one may be an old state's last
				answer, err := client.Ask(to.network, to.addr, "hostname")
				if err == nil || !right(err) {
					return fmt.Errorf("instead: %q, %v", answer, err)
				}
			}
			return nil
		})
	})
}
