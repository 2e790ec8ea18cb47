package proxy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// runs records when a runner called its function, and plays what the function does.
type runs struct {
	start time.Time
	at    []time.Duration
	asked []bool
	takes time.Duration
	fails int
}

func (r *runs) run(_ context.Context, asked bool) error {
	r.at = append(r.at, time.Since(r.start))
	r.asked = append(r.asked, asked)
	time.Sleep(r.takes) // synctest's clock
	if r.fails > 0 {
		r.fails--
		return errors.New("no luck")
	}
	return nil
}

func withRunner(t *testing.T, rec *runs, body func(*runner)) {
	synctest.Test(t, func(t *testing.T) {
		rec.start = time.Now()
		r := &runner{
			run: rec.run, pause: time.Second, retry: 2 * time.Second, retryMax: 5 * time.Second,
			period: time.Minute, share: 100, wake: make(chan struct{}, 1), hint: make(chan struct{}, 1),
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { r.loop(ctx); close(done) }()
		synctest.Wait()
		body(r)
		cancel()
		<-done
	})
}

const second = time.Second

func TestRunnerWaitsToBeAsked(t *testing.T) {
	var rec runs
	withRunner(t, &rec, func(*runner) { time.Sleep(time.Hour) })
	assert.Empty(t, rec.at)
}

func TestRunnerRunsAtOnceThenCoalesces(t *testing.T) {
	rec := runs{takes: 300 * time.Millisecond}
	withRunner(t, &rec, func(r *runner) {
		for range 100 { // a burst of two seconds
			r.ask()
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(10 * second)
	})
	assert.Equal(t, []time.Duration{0, 1300 * time.Millisecond, 2600 * time.Millisecond}, rec.at,
		"the pause counts from the end of a run, and the last request is not lost")
	assert.Equal(t, []bool{true, true, true}, rec.asked)
}

func TestRunnerRetries(t *testing.T) {
	rec := runs{fails: 4}
	withRunner(t, &rec, func(r *runner) { r.ask(); time.Sleep(30 * second) })
	assert.Equal(t, []time.Duration{0, 2 * second, 6 * second, 11 * second, 16 * second}, rec.at)
	assert.NotContains(t, rec.asked, false, "a retry does what was asked for")
}

func TestRunnerDoesNotPostponeARequestToTheRetry(t *testing.T) {
	rec := runs{fails: 3}
	withRunner(t, &rec, func(r *runner) {
		r.ask()
		time.Sleep(2*second + second/2) // failed twice, next retry in 4s
		r.ask()
		time.Sleep(3 * second)
	})
	assert.Equal(t, []time.Duration{0, 2 * second, 3 * second}, rec.at)
}

func TestRunnerLooksFromTimeToTime(t *testing.T) {
	var rec runs
	withRunner(t, &rec, func(r *runner) { r.ask(); time.Sleep(2*time.Minute + second) })
	assert.Equal(t, []time.Duration{0, time.Minute, 2 * time.Minute}, rec.at)
	assert.Equal(t, []bool{true, false, false}, rec.asked)
}

// What a requested run took says nothing about what a look costs.
func TestRunnerLooksLessOftenWhereItIsExpensive(t *testing.T) {
	rec := runs{takes: 2 * second}
	withRunner(t, &rec, func(r *runner) { r.ask(); time.Sleep(270 * second) })
	assert.Equal(t, []time.Duration{0, 62 * second, 244 * second}, rec.at)
}

// A hint brings the next look forward, many are one, and what looks may cost holds for those too.
func TestRunnerLooksWhenThereIsReason(t *testing.T) {
	rec := runs{takes: 100 * time.Millisecond}
	withRunner(t, &rec, func(r *runner) {
		r.ask()
		time.Sleep(5 * second)
		r.look()
		time.Sleep(second)
		for range 20 { // within the ten seconds that the first one costs
			r.look()
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(20 * second)
	})
	assert.Equal(t, []time.Duration{0, 5 * second, 15*second + 100*time.Millisecond}, rec.at)
	assert.Equal(t, []bool{true, false, false}, rec.asked)
}

// A hint is no reason to try again what has failed.
func TestRunnerDoesNotRetryForAHint(t *testing.T) {
	rec := runs{fails: 2}
	withRunner(t, &rec, func(r *runner) {
		r.ask()
		time.Sleep(1500 * time.Millisecond)
		r.look()
		time.Sleep(5 * second)
	})
	assert.Equal(t, []time.Duration{0, 2 * second, 6 * second}, rec.at[:3])
}
