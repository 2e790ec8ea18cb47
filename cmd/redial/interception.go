package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/sirupsen/logrus"

	"redial/iptables"
	"redial/proxy/intercept"
	"redial/proxy/intercept/local"
)

// interception is how traffic gets to the proxy, and what the relay has to do for it.
type interception struct {
	intercept.Interceptor
	name string // interceptIPTables, interceptLocal or interceptNone
	// reason is why it is not what would be preferred; empty if it is, or was chosen by name.
	reason string
	mark   uint32 // for the proxy's own connections
	listen func(fd int, addr netip.AddrPort) error

	rules  *iptables.Rules // nil unless it is iptables
	routes *local.Routes   // nil unless it is local
}

// intercept makes the back end that is asked for, or, if that is to be found out, the first one that works. It removes what
// an earlier process left with another: rules would lead to ports where nobody listens any more, and routes keep
// addresses of Services that are gone.
func (o *options) intercept(log *logrus.Entry) (*interception, error) {
	switch o.interception {
	case interceptNone:
		// Without a mark: no rule looks at it, and setting it takes privileges.
		return &interception{Interceptor: intercept.None{Bind4: o.bind4, Bind6: o.bind6}, name: interceptNone}, nil
	case interceptLocal:
		i, err := o.interceptLocally(log)
		if err == nil {
			o.removeRules(log)
		}
		return i, err
	}
	rules, err := o.rules(log)
	if err == nil {
		removeRoutes(log)
		return &interception{Interceptor: rules, name: interceptIPTables, mark: o.mark, rules: rules}, nil
	}
	// What may pass is no reason to leave rules in force that an earlier process has written.
	if o.interception == interceptIPTables || iptables.Passing(err) {
		return nil, err
	}
	i, lerr := o.interceptLocally(log)
	if lerr != nil {
		return nil, errors.Join(err, lerr)
	}
	i.reason = oneLine(err.Error())
	log.WithField("reason", i.reason).Warn("iptables does not work here: listening on the Services' own addresses instead (--interception local)")
	return i, nil
}

func (o *options) interceptLocally(log *logrus.Entry) (*interception, error) {
	routes, err := local.New(local.Config{ServiceCIDRs: func() []netip.Prefix { return o.serviceRanges }, Log: log})
	if err != nil {
		return nil, err
	}
	return &interception{Interceptor: routes, name: interceptLocal, mark: o.mark, listen: local.ListenControl(o.mark), routes: routes}, nil
}

// removeRules removes what a process that used iptables has left. Where iptables does not work, there is nothing.
func (o *options) removeRules(log *logrus.Entry) {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	rules, err := o.rules(logrus.NewEntry(quiet))
	if err == nil {
		err = rules.Cleanup(context.Background())
	}
	if err != nil {
		log.WithError(err).Debug("not looking for rules of an earlier process")
	}
}

// removeRoutes removes what a process that did without iptables has left.
func removeRoutes(log *logrus.Entry) {
	removed, err := local.Cleanup()
	if removed > 0 {
		log.WithField("routes", removed).Info("removed routes of an earlier process, which listened on the Services' own addresses")
	}
	if err != nil {
		log.WithError(err).Warn("routes of an earlier process may be left: addresses of Services that are gone lead to this node")
	}
}

// localSteering is local.Stats in a form that survives JSON.
type localSteering struct {
	Reason string      `json:"reason,omitempty"` // why iptables is not used, if that was found out
	IPv4   localFamily `json:"ipv4"`
	IPv6   localFamily `json:"ipv6"`
}

// localFamily is about the routes of one family.
type localFamily struct {
	Routes  int        `json:"routes"`
	Added   int        `json:"added"` // since the start
	Removed int        `json:"removed"`
	Refused int        `json:"refused"`         // addresses that cannot be made local
	Source  netip.Addr `json:"source"`          // what the node's own clients connect from
	Error   string     `json:"error,omitempty"` // why the family is not served at all
}

func newLocalSteering(i *interception) *localSteering {
	s := i.routes.Stats()
	family := func(f local.FamilyStats) localFamily {
		out := localFamily{Routes: f.Routes, Added: f.Added, Removed: f.Removed, Refused: f.Refused, Source: f.Source}
		if f.Err != nil {
			out.Error = oneLine(f.Err.Error())
		}
		return out
	}
	return &localSteering{Reason: i.reason, IPv4: family(s.IPv4), IPv6: family(s.IPv6)}
}

func (s *localSteering) print(w io.Writer) {
	fmt.Fprintf(w, "Services are listened for on their own addresses, by %d IPv4 and %d IPv6 routes\n", s.IPv4.Routes, s.IPv6.Routes)
	if s.Reason != "" {
		fmt.Fprintf(w, "IPTABLES IS NOT USED: %s\n", s.Reason)
	}
	for _, f := range []struct{ name, error string }{{"IPv4", s.IPv4.Error}, {"IPv6", s.IPv6.Error}} {
		if f.error != "" {
			fmt.Fprintf(w, "%s IS NOT STEERED: %s\n", f.name, f.error)
		}
	}
}
