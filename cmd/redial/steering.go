package main

import (
	"fmt"
	"io"
	"strings"

	"redial/config"
	"redial/iptables"
)

// steering is iptables.Stats in a form that survives JSON: an error value does not.
type steering struct {
	Mode    iptables.Mode  `json:"mode"`
	Version string         `json:"version"`
	IPv4    familySteering `json:"ipv4"`
	IPv6    familySteering `json:"ipv6"`
	// Rivals are the families in which rules of kube-proxy come before ours.
	Rivals []string `json:"rivals,omitempty"`
}

// familySteering is about the rules of one family. Counts are since the start.
type familySteering struct {
	Target         string `json:"target,omitempty"` // what rules do: "REDIRECT" or "DNAT to" an address
	Chains         int    `json:"chains"`
	Rules          int    `json:"rules"`
	Restores       int    `json:"restores"` // runs of iptables-restore
	FailedRestores int    `json:"failedRestores"`
	Repairs        int    `json:"repairs"`              // times others had changed our rules
	Quarantined    int    `json:"quarantined"`          // addresses left out, since the kernel refuses their rules
	Error          string `json:"error,omitempty"`      // why the family is not steered at all
	GuardError     string `json:"guardError,omitempty"` // why the proxy ports are open to direct access
	FlowsRemoved   uint   `json:"flowsRemoved"`         // stale flows deleted from connection tracking
	FlowsError     string `json:"flowsError,omitempty"` // why they could not be deleted
}

// newSteering leaves a family that is steered by other means empty.
func newSteering(s iptables.Stats, otherwise map[config.Family]bool) *steering {
	out := &steering{Mode: s.Mode, Version: s.Version}
	if !otherwise[config.IPv4] {
		out.IPv4 = newFamilySteering(s.IPv4)
	}
	if !otherwise[config.IPv6] {
		out.IPv6 = newFamilySteering(s.IPv6)
	}
	return out
}

func newFamilySteering(s iptables.FamilyStats) familySteering {
	f := familySteering{
		Target: s.Target, Chains: s.Chains, Rules: s.Rules,
		Restores: s.Restores, FailedRestores: s.FailedRestores, Repairs: s.Repairs, Quarantined: s.Quarantined,
	}
	f.FlowsRemoved = s.FlowsRemoved
	if s.FlowsErr != nil {
		f.FlowsError = oneLine(s.FlowsErr.Error())
	}
	if s.Err != nil {
		f.Error = oneLine(s.Err.Error())
	}
	if s.FilterErr != nil {
		f.GuardError = oneLine(s.FilterErr.Error())
	}
	return f
}

// print says what does not work, if anything.
func (s *steering) print(w io.Writer) {
	if len(s.Rivals) > 0 {
		fmt.Fprintf(w, "KUBE-PROXY'S RULES ARE IN FORCE (%s): %s\n", strings.Join(s.Rivals, ", "), rivalsAdvice)
	}
	for _, f := range []struct {
		name string
		familySteering
	}{{"IPv4", s.IPv4}, {"IPv6", s.IPv6}} {
		if f.Error != "" {
			fmt.Fprintf(w, "%s IS NOT STEERED: %s\n", f.name, f.Error)
		}
		if f.GuardError != "" {
			fmt.Fprintf(w, "%s PROXY PORTS ARE NOT GUARDED against direct access: %s\n", f.name, f.GuardError)
		}
		if f.FlowsError != "" {
			fmt.Fprintf(w, "%s UDP FLOWS MAY BE STALE: %s\n", f.name, f.FlowsError)
		}
	}
}

const rivalsAdvice = "its nftables table kube-proxy may take connections before redial sees them, to endpoints of long ago: " +
	"stop kube-proxy, then run kube-proxy --cleanup, or nft delete table ip kube-proxy and nft delete table ip6 kube-proxy"

// rivals are [iptables.Rivals], where redial is in kube-proxy's place rather than beside it.
func (o *options) rivals() []string {
	if !o.cluster() || o.serviceProxyName != "" || o.interception == interceptNone {
		return nil
	}
	return iptables.Rivals()
}

// oneLine is for tables: joined errors come one to a line.
func oneLine(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ") }
