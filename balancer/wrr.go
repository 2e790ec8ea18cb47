package balancer

import "sync/atomic"

// weightedRoundRobin (wrr) gives each backend as many turns of a period as it has weight. A period is the sum of the
// weights, divided by their greatest common divisor; over any run of that many turns the shares are exact. Turns of one
// backend do not come in a row but spread over the period, so that a heavy backend is not hit by a burst.
//
// Laid side by side, the weights fill a line as long as the period. Each turn goes on by about its golden section, by a
// step that has no divisor in common with the length: so every point is met once a period, and points met one after the
// other lie apart. Unlike a table of the period this costs nothing for great weights, and unlike the running counts of
// nginx's smooth round robin it needs no lock.
type weightedRoundRobin struct {
	backends []*backend
	sums     tally // nil without backends
	step     uint64
	turn     atomic.Uint64
	first    func(n int) int
}

func newWeightedRoundRobin(backends []*backend, first func(int) int) scheduler {
	w := &weightedRoundRobin{backends: backends, first: first}
	if len(backends) == 0 {
		return w
	}
	w.sums = newTally(backends)
	var divisor uint64
	for _, be := range backends {
		divisor = gcd(divisor, uint64(be.share()))
	}
	for i := range w.sums {
		w.sums[i] /= divisor
	}
	w.step = goldenStep(w.sums.total())
	w.turn.Store(uint64(first(int(w.sums.total()))))
	return w
}

func (w *weightedRoundRobin) next(r request) *backend { return take(&r, w, w.backends) }

func (w *weightedRoundRobin) draw() *backend {
	// Reduced before it is multiplied: both factors are below 2^32, for up to 65,000 backends of the greatest weight.
	period := w.sums.total()
	at := (w.turn.Add(1) - 1) % period * w.step % period
	return w.backends[w.sums.find(at)]
}

// follow begins a period somewhere: there is no place to keep where lengths differ, and a beginning by chance favours
// nobody.
func (w *weightedRoundRobin) follow(backends []*backend) scheduler {
	return newWeightedRoundRobin(backends, w.first)
}

// goldenStep returns a step without a common divisor with period, near its golden section. Of those, it takes the one
// whose ratio to the period is the hardest to approximate by a simpler fraction, that is, with the smallest greatest
// partial quotient of its continued fraction: the points of such a rotation spread the most evenly (Niederreiter, "Random
// Number Generation and Quasi-Monte Carlo Methods", theorem 3.4).
func goldenStep(period uint64) uint64 {
	const candidates = 32
	golden := uint64(float64(period) * 0.6180339887498949)
	best, least := uint64(1), period+1
	for i := range uint64(candidates) {
		for _, step := range [...]uint64{golden - min(i, golden), golden + i} {
			if step == 0 || step > period || gcd(step, period) != 1 {
				continue
			}
			if worst := greatestQuotient(step, period); worst < least {
				best, least = step, worst
			}
		}
	}
	return best
}

func greatestQuotient(a, b uint64) (greatest uint64) {
	for a != 0 {
		greatest = max(greatest, b/a)
		a, b = b%a, a
	}
	return greatest
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
