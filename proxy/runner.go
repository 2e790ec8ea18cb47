package proxy

import (
	"context"
	"time"
)

// runner calls a function when it is asked to, but not too often; again after a failure; and every now and then in any
// case, or sooner if somebody has reason to. It has one goroutine, which calls the function, so that calls never overlap.
type runner struct {
	// run does the work. asked is false when it is called for the passing of time only.
	run func(ctx context.Context, asked bool) error
	// pause is the least time from the end of one run to the beginning of the next: requests in between are one.
	pause time.Duration
	// retry is the time from a failed run to the next; it doubles with each failure up to retryMax.
	retry, retryMax time.Duration
	// period is the time from the end of a run to the next when nobody asks.
	period time.Duration
	// share bounds what unasked runs cost: after one that took d, share*d passes, or mostPeriods. It stretches the period on a
	// node where a look at the rules is expensive.
	share int

	wake, hint chan struct{} // with room for one
}

// mostPeriods is how many periods may pass between two looks, however long they take.
const mostPeriods = 3

func (r *runner) ask() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// look has the next unasked run come now, or as soon as what they may cost allows.
func (r *runner) look() {
	select {
	case r.hint <- struct{}{}:
	default:
	}
}

// loop runs until ctx ends. The first run waits for ask.
func (r *runner) loop(ctx context.Context) {
	select {
	case <-r.wake:
	case <-ctx.Done():
		return
	}
	asked, failures := true, 0
	var rest time.Duration // between two unasked runs
	for ctx.Err() == nil {
		start := time.Now()
		err := r.run(ctx, asked)
		took := time.Since(start)
		next := r.period
		if !asked {
			// Within bounds: on a busy machine a look takes long for reasons that have nothing to do with its cost.
			rest = min(time.Duration(r.share)*took, mostPeriods*r.period)
			next = max(next, rest)
		}
		asked = false
		deaf := rest
		if err != nil {
			next = min(r.retry<<min(failures, 16), r.retryMax)
			failures++
			asked, deaf = true, next
		} else {
			failures = 0
		}
		if r.sleep(ctx, next, deaf) {
			asked = true
		}
	}
}

// sleep waits for next or, once pause has passed, for a request, and reports which. A hint is heard once deaf has passed.
func (r *runner) sleep(ctx context.Context, next, deaf time.Duration) (asked bool) {
	pause := min(r.pause, next)
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return false
	}
	var hint <-chan struct{}
	hears, over := time.After(deaf-pause), time.After(next-pause)
	for {
		select {
		case <-r.wake:
			return true
		case <-hears:
			hint = r.hint
		case <-hint:
			return false
		case <-over:
			return false
		case <-ctx.Done():
			return false
		}
	}
}
