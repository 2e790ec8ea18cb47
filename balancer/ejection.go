package balancer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

const (
	// A refused dial costs its client nothing but another dial; a silent one costs it the hedge delay. So three
	// refusals in a row eject a backend, or two silences: one alone may have been a lost SYN.
	refusal    = 2
	silence    = 3
	strikesOut = 6

	ejectBase = time.Second // about as long as a container takes to start again
	ejectMax  = time.Minute // doubled for each ejection in a row up to this
	// forgetAfter is how long a backend must have been back for its next ejection to be its first.
	forgetAfter = 2 * time.Minute
	// testTime is how long a connection that puts an ejected backend to the test may be without a report before
	// another one does.
	testTime = 10 * time.Second

	slowStart = 10 * time.Second
	// fullRamp is a backend's whole weight; in slow start it has a part of it, from minRamp on.
	fullRamp = 1 << 10
	minRamp  = fullRamp / 10
)

// ejection is a backend's latest one. A backend without any has not failed lately. All but asked and testing is immutable:
// what happens next makes a new one, under Balancer.ejecting.
type ejection struct {
	times    int           // in a row
	since    time.Duration // by Balancer.now: when the first of them began
	until    time.Duration // when the backend may be tested
	why      error         // the failure that began it
	back     bool          // it is over
	returned time.Duration // if so, since when
	probed   bool          // the prober has been asked for the test
	testing  atomic.Int64  // if not, when a connection began one; 0 is none
	asked    atomic.Uint64 // by Balancer.asks: of the last connection that was sent there all the same, or else when it began
}

func (e *ejection) out() bool { return e != nil && !e.back }

// out reports whether be is passed over. One connection at a time is let through to a backend whose time is up if there
// is no prober to test it.
func (r *request) out(be *backend) bool {
	e := be.ejection.Load()
	return e.out() && !r.mayTest(e)
}

func (r *request) mayTest(e *ejection) bool {
	if e.probed && r.view.probe && r.balancer.prober.running.Load() {
		return false
	}
	now := r.balancer.now()
	began := time.Duration(e.testing.Load())
	return now >= e.until && (began == 0 || now-began >= testTime)
}

// begin lets a claimed pick go through to be, as its test if it is ejected. Otherwise the claim is undone.
func (r *request) begin(be *backend) bool {
	e := be.ejection.Load()
	if !e.out() {
		return true
	}
	began := e.testing.Load()
	if r.mayTest(e) && e.testing.CompareAndSwap(began, int64(r.balancer.now())) {
		e.asked.Store(r.balancer.asks.Add(1))
		return true
	}
	be.load.abandon()
	r.balancer.waiters.wake() // who has seen it full
	return false
}

// ramp is the part of its weight that be has now, in 1/fullRamp.
func (r *request) ramp(be *backend) int64 {
	e := be.ejection.Load()
	if e == nil || !e.back {
		return fullRamp
	}
	return min(max(int64((r.balancer.now()-e.returned)*fullRamp/slowStart), minRamp), fullRamp)
}

// strike counts a failure against be, with those of its kind in a row, and ejects be if that makes enough of them.
func (b *Balancer) strike(be *backend, row *atomic.Int32, err error) {
	points := int32(refusal)
	if silent(err) {
		points = silence
	}
	e := be.ejection.Load()
	if e.out() {
		if e.testing.Load() != 0 {
			b.eject(be, e, err)
		}
		return
	}
	if row.Add(points) >= strikesOut {
		b.eject(be, e, err)
	}
}

// silent tells a backend that has not answered from one that refused.
func silent(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// eject begins an ejection, or the next one in a row, unless be's state is no longer before.
func (b *Balancer) eject(be *backend, before *ejection, why error) {
	if e := b.ejectLocked(be, before, why); e != nil && !before.out() {
		b.tell(be, e)
	}
}

func (b *Balancer) ejectLocked(be *backend, before *ejection, why error) *ejection {
	b.ejecting.Lock()
	defer b.ejecting.Unlock()
	v := b.view.Load()
	if be.ejection.Load() != before || !v.holds(be) {
		return nil
	}
	now := b.now()
	e := &ejection{times: 1, since: now, why: why, probed: v.probe}
	if before != nil && (!before.back || now-before.returned < forgetAfter) {
		e.times = before.times + 1
	}
	if before.out() {
		e.since = before.since
	}
	e.until = now + b.ejectionTime(e.times)
	e.asked.Store(b.asks.Add(1))
	be.ejection.Store(e)
	b.counts.ejections.Add(1)
	if e.probed {
		b.prober.add(b, be, e, b.born.Add(e.until))
	}
	return e
}

// ejectionTime is how long the n-th ejection in a row lasts: doubled each time, and up to a fifth less or more, so that
// the nodes do not all come back to a backend in one moment.
func (b *Balancer) ejectionTime(n int) time.Duration {
	d := min(ejectBase<<min(n-1, 16), ejectMax)
	return d*4/5 + time.Duration(b.chance(int(d*2/5)))
}

// answered takes note that a dial or a probe succeeded. That ends an ejection, whoever's it was, if success means
// something; otherwise if it was the test.
func (b *Balancer) answered(be *backend, meaning bool) {
	if be.strikes.Load() != 0 {
		be.strikes.Store(0)
	}
	if be.suspectUntil.Load() != 0 {
		be.suspectUntil.Store(0)
	}
	e := be.ejection.Load()
	if e == nil || e.back && b.now()-e.returned < forgetAfter || e.out() && !meaning && e.testing.Load() == 0 {
		return
	}
	if over := b.endEjection(be, e); over != nil {
		b.tell(be, over)
	}
}

// endEjection returns nil if e is over already, which is then forgotten.
func (b *Balancer) endEjection(be *backend, e *ejection) *ejection {
	b.ejecting.Lock()
	defer b.ejecting.Unlock()
	switch {
	case be.ejection.Load() != e:
		return nil
	case e.back:
		be.ejection.Store(nil)
		return nil
	}
	be.load.lapses.Store(0)
	over := &ejection{times: e.times, since: e.since, why: e.why, back: true, returned: b.now()}
	be.ejection.Store(over)
	return over
}

// awaits reports whether a probe of be would still be about the ejection e. If probing has been switched off in the
// meantime, the test is left to a connection.
func (b *Balancer) awaits(be *backend, e *ejection) bool {
	b.ejecting.Lock()
	defer b.ejecting.Unlock()
	v := b.view.Load()
	if be.ejection.Load() != e || !v.holds(be) {
		return false
	}
	if !v.probe {
		left := &ejection{times: e.times, since: e.since, until: e.until, why: e.why}
		left.asked.Store(e.asked.Load())
		be.ejection.Store(left)
	}
	return v.probe
}

// probed takes the outcome of a probe.
func (b *Balancer) probed(be *backend, e *ejection, err error) {
	if !b.awaits(be, e) {
		return
	}
	if err != nil {
		b.counts.probesFailed.Add(1)
		b.eject(be, e, err)
		return
	}
	b.counts.probesAnswered.Add(1)
	b.answered(be, true)
}
