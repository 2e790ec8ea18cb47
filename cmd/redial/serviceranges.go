package main

import (
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/sirupsen/logrus"

	"redial/config"
)

// serviceRanges are the ranges that ClusterIPs are from, as far as they are to be made local as a whole.
type serviceRanges struct {
	families map[config.Family]bool
	log      *logrus.Entry

	mu  sync.Mutex
	now []netip.Prefix
}

func (r *serviceRanges) set(ranges []netip.Prefix) {
	var now []netip.Prefix
	for _, p := range ranges {
		if err := checkServiceRange(p); err != nil {
			r.log.WithField("cidr", p).WithError(err).Warn("the Service CIDR is not made local as a whole, each address is made so for itself")
			continue
		}
		if r.families[config.FamilyOf(p.Addr())] {
			now = append(now, p)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = now
}

// get may be called from any goroutine. What it returns does not change.
func (r *serviceRanges) get() []netip.Prefix {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clip(r.now)
}

// checkServiceRange returns what keeps a range from being made local.
func checkServiceRange(p netip.Prefix) error {
	if p.Bits() < 8 || p.Addr().IsLoopback() || p.Addr().IsMulticast() || p.Addr().IsLinkLocalUnicast() {
		return errors.New("would make all of it local to this node, which cannot be meant")
	}
	return nil
}
