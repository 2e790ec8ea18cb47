package relay

import (
	"context"
	"maps"
	"slices"
)

// CloseIdle closes every TCP listener if no connection is live, and reports whether it has; then there is nothing that
// Shutdown would cut. Otherwise all goes on: who came meanwhile has waited in an accept queue. Not to be called beside
// Shutdown.
func (r *Relay) CloseIdle() bool {
	if r.live.Load() > 0 {
		return false
	}
	loops := r.pause()
	arrived := false
	for _, lp := range loops {
		lp.ask(func() { arrived = arrived || len(lp.held) > 0 })
	}
	if arrived || r.live.Load() > 0 {
		for _, lp := range loops {
			lp.ask(lp.unpause)
		}
		return false
	}
	r.closeListeners()
	return true
}

// Shutdown stops accepting on every TCP listener and waits until the last connection has ended. When ctx ends first, it
// resets those that are left and returns how many there were. UDP, which has no end to wait for, is relayed until then.
func (r *Relay) Shutdown(ctx context.Context) (cut int) {
	defer r.stopLoops()
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.closeListeners()
	for _, lp := range r.pause() {
		select {
		case <-lp.drain():
			continue
		case <-ctx.Done():
		}
		lp.ask(func() { cut += lp.cut() })
	}
	return cut
}

func (r *Relay) closeListeners() {
	r.mu.Lock()
	listeners, shared := slices.Collect(maps.Keys(r.listeners)), slices.Collect(maps.Keys(r.shared))
	r.mu.Unlock()
	for _, s := range shared {
		s.Close()
	}
	// All at once, since there may be tens of thousands.
	for _, l := range listeners {
		l.shut()
	}
	for _, l := range listeners {
		<-l.closed()
	}
}

func (r *Relay) stopLoops() {
	r.mu.Lock()
	loops, tcpLoops := r.loops, r.tcpLoops
	r.mu.Unlock()
	for _, lp := range loops {
		lp.stop()
	}
	for _, lp := range tcpLoops {
		lp.stop()
	}
	r.looping.Wait()
}

// pause keeps connections from beginning or changing their loop. Those that were on their way have arrived when the loops
// do what they are asked next.
func (r *Relay) pause() []*tcpLoop {
	r.mu.Lock()
	loops := r.tcpLoops
	r.mu.Unlock()
	for _, lp := range loops {
		lp.ask(func() { lp.paused = true })
	}
	return loops
}

func (lp *tcpLoop) unpause() {
	held := lp.held
	lp.paused, lp.held = false, nil
	for _, a := range held {
		a.accept()
	}
}
