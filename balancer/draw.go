package balancer

import "math/rand/v2"

// drawer is a scheduler that hands out backends without looking at them: by turns or by chance.
type drawer interface {
	// draw returns the next backend of the order. There is at least one.
	draw() *backend
}

// take draws until a backend is taken. Drawing on, rather than looking ahead from the one that is not taken, is what
// shares out a dead backend's load: each turn of a live backend is used exactly once, in whatever order retries and first
// attempts interleave, while looking ahead would give the successor both its own turns and the dead one's.
//
// A backend in slow start gives up a part of its draws, but one pick is not held back more than four times, so that it
// ends when all are in slow start.
func take(r *request, d drawer, backends []*backend) *backend {
	if len(backends) == 0 || len(r.tried) > 0 && !r.any(backends) {
		return nil // a pick that cannot succeed uses up no turns
	}
	holds := 0
	for misses := 0; misses < 64+4*len(backends); misses++ {
		be := d.draw()
		switch {
		case !r.takes(be):
			if misses == 0 && !r.any(backends) {
				return nil
			}
		case holds < 4 && r.holdsBack(be):
			holds++
		case r.claim(be):
			return be
		}
	}
	// Those that are out have nearly all the weight, or other goroutines keep taking the turns between.
	return drawAny(r, backends)
}

// holdsBack reports, as chance has it, that be is in slow start and this draw is one of those that it gives up.
func (r *request) holdsBack(be *backend) bool {
	share := r.ramp(be)
	return share < fullRamp && int64(r.balancer.chance(fullRamp)) >= share
}

// drawAny draws by weight among the backends that r takes, by looking at all of them, and returns nil if there are none.
func drawAny(r *request, backends []*backend) *backend {
	for {
		var sum int64
		for _, be := range backends {
			if r.takes(be) {
				sum += be.share()
			}
		}
		if sum == 0 {
			return nil
		}
		at := rand.Int64N(sum)
		for _, be := range backends {
			if !r.takes(be) {
				continue
			}
			if at -= be.share(); at < 0 {
				if r.claim(be) {
					return be
				}
				break
			}
		}
	}
}

// share is the weight, and 1 for backends that are used although all are quiesced.
func (be *backend) share() int64 { return max(int64(be.weight.Load()), 1) }

// tally is the sums of weights up to and including each backend: a draw below the last belongs to the first backend whose
// sum is greater.
type tally []uint64

func newTally(backends []*backend) tally {
	sums := make(tally, len(backends))
	var sum uint64
	for i, be := range backends {
		sum += uint64(be.share())
		sums[i] = sum
	}
	return sums
}

func (t tally) total() uint64 { return t[len(t)-1] }

func (t tally) find(at uint64) int {
	low, high := 0, len(t)-1
	for low < high {
		if mid := (low + high) / 2; t[mid] > at {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}
