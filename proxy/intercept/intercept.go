// Package intercept is the contract between the proxy and what steers traffic to its listeners.
//
// The proxy says which virtual addresses ([VIP]) exist and where it listens for each ([Binding]); an [Interceptor] makes
// the kernel deliver traffic for the former to the latter. One sync is: Prepare, open listeners on BindAddr, Commit.
// A back end tracks what it has written itself; callers always pass the whole wanted set. Calls are never concurrent.
//
// Back ends: package iptables (REDIRECT rules), package local (listening on the VIPs themselves), [None] here, which
// steers nothing, and [Families], which has one for IPv4 and another for IPv6. Package intercepttest has the conformance
// suite for those that steer.
package intercept

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Protocol is an IP protocol number (IPPROTO_TCP, IPPROTO_UDP).
type Protocol uint8

// The protocols that can be steered.
const (
	TCP Protocol = 6
	UDP Protocol = 17
)

// String returns the name iptables and the Go network names use: "tcp" or "udp".
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	}
	return fmt.Sprintf("protocol-%d", uint8(p))
}

// VIP is one address, port and protocol to which clients send and which is to reach a listener of the proxy. It is
// comparable: two Services cannot own the same VIP.
type VIP struct {
	// Addr is the virtual address. The unspecified address of a family (0.0.0.0 or ::) stands for every address of
	// the node, loopback included: a NodePort.
	Addr     netip.Addr
	Port     uint16
	Protocol Protocol
}

// NodePort reports whether v stands for every address of the node.
func (v VIP) NodePort() bool { return v.Addr.IsUnspecified() }

// String returns "198.18.0.1:80/tcp"; the address of a NodePort is written "*".
func (v VIP) String() string {
	if v.NodePort() {
		return fmt.Sprintf("*:%d/%s", v.Port, v.Protocol)
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(v.Addr, v.Port), v.Protocol)
}

// Validate reports what makes v impossible to steer, whatever the back end.
func (v VIP) Validate() error {
	switch {
	case !v.Addr.IsValid():
		return errors.New("no address")
	case v.Addr.Is4In6() || v.Addr.Zone() != "":
		return fmt.Errorf("address %s: v4-mapped and zoned addresses cannot be virtual", v.Addr)
	case v.Addr.IsMulticast():
		return fmt.Errorf("address %s is multicast", v.Addr)
	case v.Port == 0:
		return errors.New("port 0")
	case v.Protocol != TCP && v.Protocol != UDP:
		return fmt.Errorf("%s cannot be steered", v.Protocol)
	}
	return nil
}

// Binding steers one VIP to the proxy's listeners.
type Binding struct {
	VIP VIP
	// Listen is where the proxy listens for this VIP, as BindAddr returned it; its address may be unspecified. Where nobody
	// listens, clients are refused. The zero value means that packets are dropped without an answer: the traffic policy is
	// Local, and the endpoints are elsewhere.
	Listen netip.AddrPort
	// Local is where clients on this node (its own processes, and the pods that [State].Pods describes) go instead of
	// Listen: an external traffic policy Local does not concern them. The zero value means that they go where everybody does.
	Local netip.AddrPort
	// Sources are the clients that may use the VIP; packets of others are dropped without an answer. Nil means
	// everybody, an empty list nobody.
	Sources []netip.Prefix
	// Owner names the Service port for people, in rule comments and errors. It may hold any text.
	Owner string
}

// Equal reports whether b and o are the same in every field.
func (b Binding) Equal(o Binding) bool {
	return b.VIP == o.VIP && b.Listen == o.Listen && b.Local == o.Local && b.Owner == o.Owner &&
		(b.Sources == nil) == (o.Sources == nil) && slices.Equal(b.Sources, o.Sources)
}

// State is all that is to be in force. Its zero value steers nothing.
type State struct {
	Bindings []Binding
	// NodePorts are the prefixes of those addresses of the node at which NodePorts are open; nil means all addresses, and
	// an address that appears later is open as soon as it is there. Of a family without a prefix none is.
	NodePorts []netip.Prefix
	// NoLocalhostNodePorts closes NodePorts at loopback addresses, whatever NodePorts says.
	NoLocalhostNodePorts bool
	// Pods tell the packets that pods of this node send; nil means that they cannot be told from those of other nodes.
	Pods []PodSource
	// HealthChecks are the TCP ports at which load balancers ask the proxy for a Service's endpoints. Nothing is steered
	// there; but they are open whatever the host's policy for what comes in. Sorted, each once.
	HealthChecks []uint16
}

// Equal reports whether s and o ask for the same.
func (s State) Equal(o State) bool {
	return slices.EqualFunc(s.Bindings, o.Bindings, Binding.Equal) &&
		(s.NodePorts == nil) == (o.NodePorts == nil) && slices.Equal(s.NodePorts, o.NodePorts) &&
		s.NoLocalhostNodePorts == o.NoLocalhostNodePorts && slices.Equal(s.Pods, o.Pods) &&
		slices.Equal(s.HealthChecks, o.HealthChecks)
}

// PodSource tells packets that come from pods of this node, by one of its fields.
type PodSource struct {
	// Prefix is a range of addresses of pods.
	Prefix netip.Prefix
	// Interface is the name of an interface that pods' packets come in by; one that ends in "+" stands for all that
	// begin like this.
	Interface string
}

// Interceptor steers traffic for virtual addresses to the proxy's listeners.
type Interceptor interface {
	// Prepare makes it possible to listen for these VIPs. It only adds, so that what is steered now stays so.
	Prepare(ctx context.Context, vips []VIP) error
	// BindAddr returns where the proxy must listen for v, given the proxy port allocated to its frontend, if any. VIPs of
	// one frontend may share an answer; each distinct answer is one listener. An answer whose port is 0 when asked with
	// port 0 tells that it takes a proxy port at all.
	BindAddr(v VIP, port uint16) netip.AddrPort
	// Commit puts exactly this state in force and removes everything else of ours. A binding that the kernel refuses does
	// not hold up the others: Commit steers those, and returns a BindingError for it (joined with others by
	// errors.Join). Any other error means that nothing is known to have changed and the call should be repeated.
	// Commit of an unchanged state also repairs what others removed.
	Commit(ctx context.Context, want State) error
	// Verify reports whether what the last Commit wrote is still in force. It is cheap enough to be called every few
	// seconds. false asks for a Commit; an error means that it could not be found out.
	Verify(ctx context.Context) (bool, error)
	// Cleanup removes all we own, also what an earlier process left. What is not there is not an error.
	Cleanup(ctx context.Context) error
}

// BindingError says that one binding could not be put in force.
type BindingError struct {
	Binding Binding
	Err     error
}

func (e *BindingError) Error() string {
	return fmt.Sprintf("steering %s to %s for %s: %v", e.Binding.VIP, e.Binding.Listen, e.Binding.Owner, e.Err)
}

func (e *BindingError) Unwrap() error { return e.Err }
