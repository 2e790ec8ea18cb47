package relay

// Totals are the counters of all listeners there have been.
type Totals struct {
	TCP Stats `json:"tcp"`
	UDP Stats `json:"udp"`
}

// Totals adds up all listeners, those that have been closed included, so that no count is ever less than before.
func (r *Relay) Totals() Totals {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.leaving {
		r.retire(l)
	}
	t := r.retired
	for l := range r.listeners {
		t.TCP = t.TCP.Add(l.Stats())
	}
	for s := range r.shared {
		t.TCP = t.TCP.Add(s.Stats())
	}
	for l := range r.leaving {
		t.TCP = t.TCP.Add(l.Stats())
	}
	for l := range r.udpListeners {
		t.UDP = t.UDP.Add(l.Stats())
	}
	return t
}

// remove forgets a listener that has been closed.
func (r *Relay) remove(l *Listener) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.listeners, l)
	r.leaving[l] = struct{}{}
	r.retire(l)
}

// retire keeps the counters alone of a closed listener if nothing will be added to them. mu is held.
func (r *Relay) retire(l *Listener) {
	s := l.Stats()
	if s.Active > 0 || s.Accepted > s.Connected+s.Failed+s.NoBackend+s.Abandoned+s.Limited {
		return
	}
	delete(r.leaving, l)
	r.retired.TCP = r.retired.TCP.Add(s)
}
