package balancer

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// model is the balancer as one would describe it, slow and for one goroutine, with rr and without a prober.
type model struct {
	queue    []netip.AddrPort // the round: the head is next
	timeout  time.Duration
	pins     map[netip.Addr]modelPin
	health   map[netip.AddrPort]*modelHealth
	connects bool // to be connected to means something
	asks     int  // of ejected backends
}

type modelPin struct {
	backend netip.AddrPort
	used    time.Time
}

type modelHealth struct {
	strikes  int
	asked    int // when it was last, or else ejected, as a number of asks
	times    int // ejections in a row
	out      bool
	until    time.Time
	tested   time.Time // when the connection that is the test was picked
	returned time.Time
}

func (m *model) update(c Config) {
	var wanted []netip.AddrPort
	for _, b := range c.Backends {
		wanted = append(wanted, b.Addr)
	}
	slices.SortFunc(wanted, netip.AddrPort.Compare)
	var head netip.AddrPort
	for _, addr := range m.queue {
		if slices.Contains(wanted, addr) {
			head = addr
			break
		}
	}
	m.queue = wanted
	if head.IsValid() {
		for m.queue[0] != head {
			m.rotate()
		}
	}
	for client, pin := range m.pins {
		if c.Affinity == 0 || !m.pinned(client).IsValid() || !slices.Contains(wanted, pin.backend) {
			delete(m.pins, client)
		}
	}
	m.timeout = c.Affinity
	for addr := range m.health {
		if !slices.Contains(wanted, addr) {
			delete(m.health, addr)
		}
	}
	for _, addr := range wanted {
		if m.health[addr] == nil {
			m.health[addr] = &modelHealth{}
		}
	}
}

func (m *model) rotate() { m.queue = append(m.queue[1:], m.queue[0]) }

func (m *model) pinned(client netip.Addr) netip.AddrPort {
	if pin, ok := m.pins[client]; ok && time.Since(pin.used) < m.timeout {
		return pin.backend
	}
	return netip.AddrPort{}
}

// out reports whether a backend is passed over: ejected, and not to be tested by the next connection.
func (m *model) out(addr netip.AddrPort) bool {
	h := m.health[addr]
	return h.out && (time.Now().Before(h.until) || !h.tested.IsZero() && time.Since(h.tested) < 10*time.Second)
}

func (m *model) choose(addr netip.AddrPort) netip.AddrPort {
	if h := m.health[addr]; h.out {
		h.tested = time.Now()
		m.ask(h)
	}
	return addr
}

func (m *model) ask(h *modelHealth) {
	m.asks++
	h.asked = m.asks
}

func (m *model) pick(client netip.Addr, tried []netip.AddrPort) netip.AddrPort {
	pinned := m.pinned(client)
	if pinned.IsValid() && !slices.Contains(tried, pinned) && !m.out(pinned) {
		return m.choose(pinned)
	}
	chosen := m.turn(tried)
	if !chosen.IsValid() {
		return chosen
	}
	if m.timeout > 0 && (!pinned.IsValid() || m.out(pinned)) {
		m.pins[client] = modelPin{chosen, time.Now()}
	}
	return chosen
}

func (m *model) turn(tried []netip.AddrPort) netip.AddrPort {
	bad := func(a netip.AddrPort) bool { return slices.Contains(tried, a) || m.out(a) }
	if slices.ContainsFunc(m.queue, func(a netip.AddrPort) bool { return !bad(a) }) {
		for bad(m.queue[0]) {
			m.rotate()
		}
		chosen := m.queue[0]
		m.rotate()
		return m.choose(chosen)
	}
	if len(tried) == 0 && len(m.queue) > 0 {
		m.rotate()
	}
	var least netip.AddrPort
	for _, a := range slices.SortedFunc(slices.Values(m.queue), netip.AddrPort.Compare) {
		if !slices.Contains(tried, a) && (!least.IsValid() || m.health[a].asked < m.health[least].asked) {
			least = a
		}
	}
	if least.IsValid() {
		m.ask(m.health[least])
	}
	return least
}

func (m *model) report(client netip.Addr, backend netip.AddrPort, err error) {
	h := m.health[backend]
	if err == context.Canceled {
		if h != nil && h.out {
			h.tested = time.Time{}
		}
		return
	}
	if h != nil {
		if h.report(err, m.connects) {
			m.ask(h)
		}
	}
	pinned := m.pinned(client)
	switch {
	case m.timeout == 0:
	case err != nil && m.pins[client].backend == backend:
		delete(m.pins, client)
	case err == nil && slices.Contains(m.queue, backend) && (!pinned.IsValid() || pinned == backend):
		m.pins[client] = modelPin{backend, time.Now()}
	}
}

// report returns true if the backend is ejected for it, or for longer.
func (h *modelHealth) report(err error, connects bool) bool {
	now := time.Now()
	if err == nil {
		h.strikes = 0
		switch {
		case h.out && !connects && h.tested.IsZero():
		case h.out:
			h.out, h.returned = false, now
		case now.Sub(h.returned) >= 2*time.Minute:
			h.times = 0
		}
		return false
	}
	if h.out && h.tested.IsZero() {
		return false
	}
	if h.strikes += 2; err == context.DeadlineExceeded {
		h.strikes++
	}
	if !h.out && h.strikes < 6 {
		return false
	}
	if !h.out && now.Sub(h.returned) >= 2*time.Minute {
		h.times = 0
	}
	h.times++
	length := min(time.Second<<(h.times-1), time.Minute)
	h.out, h.until, h.tested = true, now.Add(length*4/5), time.Time{}
	return true
}

func (m *model) live() (n int) {
	for client := range m.pins {
		if m.pinned(client).IsValid() {
			n++
		}
	}
	return n
}

func TestBehavesLikeTheModel(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			b := startingAt(0)
			m := &model{pins: map[netip.Addr]modelPin{}, health: map[netip.AddrPort]*modelHealth{}, connects: seed%2 > 0}
			timeouts := []time.Duration{0, 3 * time.Second, 10 * time.Second, 10 * time.Second}
			outcomes := []error{nil, errRefused, errRefused, context.DeadlineExceeded, context.Canceled}
			some := func(n int) []netip.AddrPort {
				list := addrs(1, 2, 3, 4, 5, 6)
				rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
				return list[:n]
			}
			for step := range 300 {
				who := client(rng.IntN(4))
				switch op := rng.IntN(20); {
				case op == 0:
					c := Config{Backends: weighted(some(rng.IntN(6)), 1), Affinity: timeouts[rng.IntN(len(timeouts))], Probe: seed%2 > 0}
					b.Update(c)
					m.update(c)
				case op == 1 && rng.IntN(8) == 0:
					time.Sleep(time.Duration(rng.IntN(200)) * time.Second)
				case op < 4:
					time.Sleep(time.Duration(rng.IntN(4)) * time.Second)
				case op < 14:
					tried := some(max(0, rng.IntN(8)-3))
					got, ok := b.Pick(who, tried)
					want := m.pick(who, tried)
					require.Equal(t, want, got, "seed %d, step %d: %v tried %v", seed, step, who, tried)
					require.Equal(t, want.IsValid(), ok)
				default:
					backend, err := some(1)[0], outcomes[rng.IntN(len(outcomes))]
					b.Report(who, backend, 0, err)
					m.report(who, backend, err)
				}
				require.Equal(t, len(m.queue), b.Len())
				for _, s := range b.Backends() {
					h := m.health[s.Addr]
					require.Equal(t, h.out, !s.EjectedUntil.IsZero(), "seed %d, step %d: %v", seed, step, s.Addr)
					require.Equal(t, h.times, s.Ejections, "seed %d, step %d: %v", seed, step, s.Addr)
				}
				require.Equal(t, m.live(), b.Pins(), "seed %d, step %d", seed, step)
			}
		})
	}
}
