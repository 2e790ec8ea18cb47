package balancer

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// model is the balancer as one would describe it, slow and for one goroutine.
type model struct {
	queue   []netip.AddrPort // the round: the head is next
	timeout time.Duration
	pins    map[netip.Addr]modelPin
}

type modelPin struct {
	backend netip.AddrPort
	used    time.Time
}

func (m *model) update(c Config) {
	wanted := slices.SortedFunc(slices.Values(c.Backends), netip.AddrPort.Compare)
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
}

func (m *model) rotate() { m.queue = append(m.queue[1:], m.queue[0]) }

func (m *model) pinned(client netip.Addr) netip.AddrPort {
	if pin, ok := m.pins[client]; ok && time.Since(pin.used) < m.timeout {
		return pin.backend
	}
	return netip.AddrPort{}
}

func (m *model) pick(client netip.Addr, tried []netip.AddrPort) netip.AddrPort {
	pinned := m.pinned(client)
	if pinned.IsValid() && !slices.Contains(tried, pinned) {
		return pinned
	}
	if !slices.ContainsFunc(m.queue, func(a netip.AddrPort) bool { return !slices.Contains(tried, a) }) {
		return netip.AddrPort{}
	}
	for slices.Contains(tried, m.queue[0]) {
		m.rotate()
	}
	chosen := m.queue[0]
	m.rotate()
	if m.timeout > 0 && !pinned.IsValid() {
		m.pins[client] = modelPin{chosen, time.Now()}
	}
	return chosen
}

func (m *model) report(client netip.Addr, backend netip.AddrPort, err error) {
	pinned := m.pinned(client)
	switch {
	case m.timeout == 0:
	case err != nil && m.pins[client].backend == backend:
		delete(m.pins, client)
	case err == nil && slices.Contains(m.queue, backend) && (!pinned.IsValid() || pinned == backend):
		m.pins[client] = modelPin{backend, time.Now()}
	}
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
			m := &model{pins: map[netip.Addr]modelPin{}}
			timeouts := []time.Duration{0, 3 * time.Second, 10 * time.Second, 10 * time.Second}
			some := func(n int) []netip.AddrPort {
				list := addrs(1, 2, 3, 4, 5, 6)
				rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
				return list[:n]
			}
			for step := range 300 {
				who := client(rng.IntN(4))
				switch op := rng.IntN(20); {
				case op == 0:
					c := Config{Backends: some(rng.IntN(6)), Affinity: timeouts[rng.IntN(len(timeouts))]}
					b.Update(c)
					m.update(c)
				case op < 4:
					time.Sleep(time.Duration(rng.IntN(4)) * time.Second)
				case op < 14:
					tried := some(max(0, rng.IntN(8)-3))
					got, ok := b.Pick(who, tried)
					want := m.pick(who, tried)
					require.Equal(t, want, got, "seed %d, step %d: %v tried %v", seed, step, who, tried)
					require.Equal(t, want.IsValid(), ok)
				default:
					backend, err := some(1)[0], []error{nil, errRefused}[rng.IntN(2)]
					b.Report(who, backend, err)
					m.report(who, backend, err)
				}
				require.Equal(t, len(m.queue), b.Len())
				require.Equal(t, m.live(), b.Pins(), "seed %d, step %d", seed, step)
			}
		})
	}
}
