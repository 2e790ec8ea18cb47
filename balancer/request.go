package balancer

import (
	"net/netip"
	"slices"
)

// request is one pick as schedulers see it. It goes to them by value, since what a pointer handed to an interface
// points to is allocated; within a function, pointers cost nothing.
type request struct {
	client      netip.Addr // this and the next may be invalid
	destination netip.Addr
	tried       []netip.AddrPort
	view        *view
	balancer    *Balancer
	trusting    bool // suspects are taken as well
}

// takes reports whether the connection may go to be: not tried, not at its limit, not ejected, no suspect. It changes nothing: what
// it saw may be over by the time of the claim.
func (r *request) takes(be *backend) bool {
	return r.wants(be) && !r.out(be) && !r.suspects(be)
}

// wants is takes without regard to ejection and suspicion.
func (r *request) wants(be *backend) bool {
	return be.load.free(r.view.limit) && !slices.Contains(r.tried, be.addr)
}

// any reports whether the connection may go to one of backends.
func (r *request) any(backends []*backend) bool {
	for _, be := range backends {
		if r.takes(be) {
			return true
		}
	}
	return false
}

// claim counts the pick as in flight on be. False means that be was filled, ejected or put to the test in the meantime.
func (r *request) claim(be *backend) bool {
	return be.load.reserve(r.view.limit) && r.begin(be)
}

// claimIf is claim, provided that be's load is still the one seen.
func (r *request) claimIf(be *backend, seen reading) bool {
	return be.load.reserveIf(seen, r.view.limit) && r.begin(be)
}

// leastBad claims the backend that has not been asked for the longest, when all that r wants are ejected. An ejection only
// ever puts a backend last: if all are out, the verdict may be wrong or out of date, and a refusal by the balancer would
// be an outage of its own making.
//
// To be asked counts, not to fail: one that is silent takes long to fail, and all who come meanwhile would be sent there
// although another works again.
func (r *request) leastBad() *backend {
	for {
		var best *backend
		var of *ejection
		var asked uint64
		for _, be := range r.view.eligible {
			if !r.wants(be) {
				continue
			}
			if e, at := be.asked(); best == nil || at < asked {
				best, of, asked = be, e, at
			}
		}
		if best == nil {
			return nil
		}
		if of != nil && !of.asked.CompareAndSwap(asked, r.balancer.asks.Add(1)) {
			continue // another connection was quicker
		}
		if best.load.reserve(r.view.limit) {
			return best
		}
	}
}

// asked is when be was asked last while ejected. It is before all others if it is not.
func (be *backend) asked() (*ejection, uint64) {
	e := be.ejection.Load()
	if !e.out() {
		return nil, 0
	}
	return e, e.asked.Load()
}
