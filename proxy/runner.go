package proxy

import (
	"context"
	"time"
)

// runner calls a function when it is asked to, but not too often; again after a failure; and every now and then in any
// case. It has one goroutine, which calls the function, so that calls never overlap.
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

	wake chan struct{}
}

// mostPeriods is how many periods may pass between two looks, however long they take.
const mostPeriods = 3

func (r *runner) ask() {
	select {
	case r.wake <- struct{}{}:
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
	for ctx.Err() == nil {
		start := time.Now()
		err := r.run(ctx, asked)
		took := time.Since(start)
		next := r.period
		if !asked {
			// Within bounds: on a busy machine a look takes long for reasons that have nothing to do with its cost.
			next = max(next, min(time.Duration(r.share)*took, mostPeriods*r.period))
		}
		asked = false
		if err != nil {
			next = min(r.retry<<min(failures, 16), r.retryMax)
			failures++
			asked = true
		} else {
			failures = 0
		}
		if r.sleep(ctx, next) {
			asked = true
		}
	}
}

// sleep waits for next or, once pause has passed, for a request, and reports which.
func (r *runner) sleep(ctx context.Context, next time.Duration) (asked bool) {
	pause := min(r.pause, next)
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return false
	}
	select {
	case <-r.wake:
		return true
	case <-time.After(next - pause):
		return false
	case <-ctx.Done():
		return false
	}
}
