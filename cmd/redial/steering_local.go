package main

import (
	"fmt"
	"io"
	"net/netip"
	"strings"

	"redial/config"
)

// localSteering is local.Stats in a form that survives JSON. A family that is not steered by routes is not in it.
type localSteering struct {
	Reason string       `json:"reason,omitempty"` // why iptables is not used, if that was found out
	IPv4   *localFamily `json:"ipv4,omitempty"`
	IPv6   *localFamily `json:"ipv6,omitempty"`
	// ServiceCIDRs are the ranges that are, or could not be, made local as a whole.
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`
	NotShared    string         `json:"notShared,omitempty"` // why VIPs cannot share listeners
}

// localFamily is about the routes of one family.
type localFamily struct {
	Routes  int        `json:"routes"`
	Added   int        `json:"added"` // since the start
	Removed int        `json:"removed"`
	Refused int        `json:"refused"`         // addresses that cannot be made local
	Shared  int        `json:"shared"`          // VIPs that share listeners
	Source  netip.Addr `json:"source"`          // what the node's own clients connect from
	Error   string     `json:"error,omitempty"` // why the family is not served at all
}

func newLocalSteering(i *interception) *localSteering {
	stats := i.routes.Stats()
	family := func(f config.Family) *localFamily {
		if !i.routed[f] {
			return nil
		}
		s := stats.Of(f == config.IPv6)
		out := &localFamily{Routes: s.Routes, Added: s.Added, Removed: s.Removed, Refused: s.Refused, Shared: s.Shared, Source: s.Source}
		if s.Err != nil {
			out.Error = oneLine(s.Err.Error())
		}
		return out
	}
	out := &localSteering{Reason: i.reason, IPv4: family(config.IPv4), IPv6: family(config.IPv6), ServiceCIDRs: i.ranges.get()}
	if err := i.routes.Shares(false); err != nil {
		out.NotShared = oneLine(err.Error())
	}
	return out
}

func (s *localSteering) print(w io.Writer) {
	var by, which, broken []string
	for _, f := range []struct {
		name string
		*localFamily
	}{{"IPv4", s.IPv4}, {"IPv6", s.IPv6}} {
		if f.localFamily == nil {
			continue
		}
		which = append(which, f.name)
		by = append(by, fmt.Sprintf("%d %s", f.Routes, f.name))
		if f.Error != "" {
			broken = append(broken, fmt.Sprintf("%s IS NOT STEERED: %s\n", f.name, f.Error))
		}
	}
	services, unused := "Services", "IPTABLES IS NOT USED"
	if len(which) == 1 {
		services, unused = which[0]+" Services", unused+" for "+which[0]
	}
	fmt.Fprintf(w, "%s are listened for on their own addresses, by %s routes\n", services, strings.Join(by, " and "))
	if s.Reason != "" {
		fmt.Fprintf(w, "%s: %s\n", unused, s.Reason)
	}
	for _, line := range broken {
		fmt.Fprint(w, line)
	}
}
