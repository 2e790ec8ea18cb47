package balancer

import (
	"sync/atomic"
	"time"
)

// budget is the dials beyond the first of a connection that a dead Service may have: one for every five connections, or
// ten a second if that is more. In units of which a retry costs five.
type budget struct {
	units  atomic.Int64
	filled atomic.Int64 // time.Duration by Balancer.now up to which the units of the seconds have been added
}

const (
	retryCost   = 5
	unitsPerSec = 10 * retryCost
	maxUnits    = unitsPerSec
	unitTime    = time.Second / unitsPerSec
)

// earn adds the unit of a connection.
func (b *budget) earn() { b.add(1) }

// spend takes a retry's cost out, if there is as much.
func (b *budget) spend(now time.Duration) bool {
	filled := b.filled.Load()
	if n := (int64(now) - filled) / int64(unitTime); n > 0 && b.filled.CompareAndSwap(filled, filled+n*int64(unitTime)) {
		b.add(n)
	}
	for {
		n := b.units.Load()
		if n < retryCost {
			return false
		}
		if b.units.CompareAndSwap(n, n-retryCost) {
			return true
		}
	}
}

func (b *budget) add(units int64) {
	for {
		n := b.units.Load()
		if n >= maxUnits || b.units.CompareAndSwap(n, min(n+units, maxUnits)) {
			return
		}
	}
}

// Working reports whether one backend is not ejected. A connection that begins then may have all the dials that it needs:
// its backends may be ejected under it, all at once, and one ejected before may be back without anybody's having noticed.
func (b *Balancer) Working() bool {
	for _, be := range b.view.Load().eligible {
		if !be.ejection.Load().out() {
			return true
		}
	}
	return false
}

// Retry reports whether a connection that has begun when nothing was Working may be dialled again after a failed dial. It
// may if something is by now, so no connection fails for it that another dial to such a backend would save. Otherwise it
// takes a token of the budget.
func (b *Balancer) Retry() bool {
	if b.Working() || b.retries.spend(b.now()) {
		return true
	}
	b.counts.retriesRefused.Add(1)
	return false
}
