package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"

	"github.com/sirupsen/logrus"

	"redial/config"
	"redial/iptables"
	"redial/proxy/intercept"
	"redial/proxy/intercept/local"
)

// interception is how traffic gets to the proxy, and what the relay has to do for it.
type interception struct {
	intercept.Interceptor
	name string // interceptIPTables, interceptLocal or interceptNone
	// reason is why it is not, or not for both families, what would be preferred; empty if it is, or was chosen by name.
	reason string
	mark   uint32 // for the proxy's own connections
	listen func(fd int, addr netip.AddrPort) error

	rules  *iptables.Rules        // nil unless a family is steered by them
	routes *local.Routes          // likewise
	routed map[config.Family]bool // the families steered by routes
	ranges *serviceRanges         // of the routes
}

// intercept makes the back end that is asked for, or, if that is to be found out, the first one that works, of each family. It
// removes what an earlier process left with another: rules would lead to ports where nobody listens any more, and routes
// keep addresses of Services that are gone.
func (o *options) intercept(log *logrus.Entry) (*interception, error) {
	switch o.interception {
	case interceptNone:
		// Without a mark: no rule looks at it, and setting it takes privileges.
		return &interception{Interceptor: intercept.None{Bind4: o.bind4, Bind6: o.bind6}, name: interceptNone}, nil
	case interceptLocal:
		i, err := o.interceptLocally(log, config.Families...)
		if err == nil {
			o.removeRules(log)
		}
		return i, err
	}
	rules, err := o.rules(log)
	if err == nil {
		return o.interceptByRules(rules, log), nil
	}
	// What may pass is no reason to leave rules in force that an earlier process has written.
	if o.interception == interceptIPTables || iptables.Passing(err) {
		return nil, err
	}
	i, lerr := o.interceptLocally(log, config.Families...)
	if lerr != nil {
		return nil, fmt.Errorf("neither iptables rules nor routes can be written: run as root, or with CAP_NET_ADMIN and CAP_NET_RAW, "+
			"or with --interception=none, which needs no privileges: %s; %w", oneLine(iptables.Cause(err)), lerr)
	}
	i.reason = oneLine(iptables.Cause(err))
	log.WithField("reason", i.reason).Warn("iptables does not work here: listening on the Services' own addresses instead (--interception local)")
	log.WithError(err).Debug("all that was tried with iptables")
	return i, nil
}

// interceptByRules steers by rules. Where they cannot be written for one of the families, that one is steered by routes, if
// that is left to us and works.
func (o *options) interceptByRules(rules *iptables.Rules, log *logrus.Entry) *interception {
	i := &interception{Interceptor: rules, name: interceptIPTables, mark: o.mark, rules: rules}
	stats := rules.Stats()
	family, err := config.IPv4, stats.IPv4.Err
	if err == nil {
		family, err = config.IPv6, stats.IPv6.Err
	}
	if err == nil || iptables.Passing(err) {
		removeRoutes(log)
		return i
	}
	explain := log.WithFields(logrus.Fields{"family": family, "reason": oneLine(iptables.Cause(err))})
	other, lerr := (*interception)(nil), error(nil)
	if o.interception == interceptAuto {
		if other, lerr = o.interceptLocally(log, family); lerr == nil {
			lerr = other.routes.Stats().Of(family == config.IPv6).Err
		}
	}
	if other == nil || lerr != nil {
		removeRoutes(log)
		if lerr != nil {
			explain = explain.WithField("local", oneLine(lerr.Error()))
		}
		explain.Warn("this family is not steered: iptables does not work for it here, and its Services have a problem of reason SteeringFailed")
		return i
	}
	explain.Warn("iptables does not work for this family here: listening on its Services' own addresses instead (--interception local)")
	i.reason, i.routes, i.routed, i.ranges = oneLine(iptables.Cause(err)), other.routes, other.routed, other.ranges
	i.listen = func(fd int, addr netip.AddrPort) error {
		if i.routed[config.FamilyOf(addr.Addr())] {
			return other.listen(fd, addr)
		}
		return nil
	}
	both := intercept.Families{IPv4: rules, IPv6: other.routes}
	if family == config.IPv4 {
		both = intercept.Families{IPv4: other.routes, IPv6: rules}
	}
	i.Interceptor = both
	return i
}

// interceptLocally steers these families by routes.
func (o *options) interceptLocally(log *logrus.Entry, families ...config.Family) (*interception, error) {
	i := &interception{name: interceptLocal, mark: o.mark, listen: local.ListenControl(o.mark), routed: map[config.Family]bool{}}
	for _, f := range families {
		i.routed[f] = true
	}
	i.ranges = &serviceRanges{families: i.routed, log: log}
	i.ranges.set(o.serviceRanges)
	routes, err := local.New(local.Config{ServiceCIDRs: i.ranges.get, Log: log})
	if err != nil {
		return nil, err
	}
	i.Interceptor, i.routes = routes, routes
	return i, nil
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
