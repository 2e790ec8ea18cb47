package balancer

import (
	"sync/atomic"
	"time"
)

// estimate is what is known of a backend's connect times: mean and mean deviation, moved by 1/8 and 1/4 of the way with
// each sample, as TCP estimates round trips (RFC 6298, section 2). The zero value knows nothing. It is one word (samples,
// mean and deviation in ticks), since there is one for every backend.
type estimate struct {
	word atomic.Uint64
}

const (
	minHedge = 10 * time.Millisecond  // below this, the noise of a busy node would dial everything twice
	maxHedge = 250 * time.Millisecond // the first step of kube-proxy's ladder of dial timeouts

	tick     = 64 * time.Nanosecond
	tickBits = 28
	maxTicks = 1<<tickBits - 1 // some 17 s
)

type connectTimes struct{ samples, mean, deviation int64 }

func (e *estimate) load() (uint64, connectTimes) {
	w := e.word.Load()
	return w, connectTimes{int64(w >> (2 * tickBits)), int64(w >> tickBits & maxTicks), int64(w & maxTicks)}
}

// add takes in a dial that was answered after took. Zero (or less) means that the time is not known.
func (e *estimate) add(took time.Duration) {
	if took <= 0 {
		return
	}
	sample := min(max(int64(took/tick), 1), maxTicks)
	for {
		w, t := e.load()
		if e.word.CompareAndSwap(w, t.after(sample).pack()) {
			return
		}
	}
}

// atLeast takes in a dial that had no answer yet when it ended after took. It counts only if it lasted longer than one
// would expect: without it, a backend that has become slower than its hedge delay would be hedged for ever where those
// that lose the race against the second dial are given up. A dial that has failed by being silent is no sample: because a
// backend is dead, the next client is not to wait for longer.
func (e *estimate) atLeast(took time.Duration) {
	if _, t := e.load(); t.samples > 0 && took > time.Duration(t.mean)*tick {
		e.add(took)
	}
}

func (t connectTimes) after(sample int64) connectTimes {
	if t.samples == 0 {
		return connectTimes{1, sample, sample / 2}
	}
	off := sample - t.mean
	t.deviation += (max(off, -off) - t.deviation) / 4
	t.mean += off / 8
	t.samples = min(t.samples+1, 255)
	return t
}

func (t connectTimes) pack() uint64 {
	return uint64(t.samples)<<(2*tickBits) | uint64(t.mean)<<tickBits | uint64(t.deviation)
}

// known reports whether there are enough samples for hedge to be as low as it may be.
func (e *estimate) known() bool {
	_, t := e.load()
	return maxHedge>>t.samples <= minHedge
}

// hedge is how long an answer may take before it is late: the mean and four deviations, within the bounds. As long as
// there are few samples, chance may have made them alike, so the delay begins at 250 ms and each sample at most halves
// it.
func (e *estimate) hedge() time.Duration {
	_, t := e.load()
	late := time.Duration(t.mean+4*t.deviation) * tick
	return min(max(late, maxHedge>>min(t.samples, 16), minHedge), maxHedge)
}

// average is the mean; 0 if there are no samples.
func (e *estimate) average() time.Duration {
	_, t := e.load()
	return time.Duration(t.mean) * tick
}
