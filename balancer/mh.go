package balancer

// maglev (mh) is consistent hashing by client address through a table (Eisenbud and others, "Maglev: A Fast and Reliable
// Software Network Load Balancer", section 3.4). Each backend has an order of preference over the slots of the table, and
// they take turns, more of them with more weight, at claiming the free slot that they prefer the most. So shares differ
// by one slot only. When a backend leaves, its clients are spread over the others, and a few more move.
//
// The table depends on the set alone, not on what it was before: all nodes that see the same set send a client to the
// same backend. Hence its size must not follow the number of backends closely, since a table of another size is another
// assignment: 4,093 slots, the kernel's default (CONFIG_IP_VS_MH_TAB_INDEX), 8 KiB, up to 400 backends; 65,521 above.
type maglev struct {
	backends []*backend
	slots    []uint16 // indices of backends
}

const (
	smallTable    = 4093
	smallTableFor = 400 // backends: ten slots each, so shares differ by a tenth
	largeTable    = 65521
)

func newMaglev(backends []*backend, _ func(int) int) scheduler {
	m := &maglev{backends: backends}
	if len(backends) > 0 {
		m.slots = fillTable(backends)
	}
	return m
}

// fillTable assigns the slots. Backends beyond the number of slots get none: they only serve when all others are out.
func fillTable(backends []*backend) []uint16 {
	size := uint64(smallTable)
	if len(backends) > smallTableFor {
		size = largeTable
	}
	backends = backends[:min(len(backends), int(size))]
	var heaviest int64
	orders := make([]struct {
		at, skip uint64 // the slot that the backend prefers of those that it has not yet asked for
		credit   int64
	}, len(backends))
	for i, be := range backends {
		orders[i].at = hashBackend(be.addr, 0x6f66667365740000) % size
		orders[i].skip = hashBackend(be.addr, 0x736b697000000000)%(size-1) + 1
		heaviest = max(heaviest, be.share())
	}
	slots := make([]uint16, size)
	taken := make([]bool, size)
	for left := size; ; {
		for i := range orders {
			o := &orders[i]
			if o.credit += backends[i].share(); o.credit < heaviest {
				continue
			}
			o.credit -= heaviest
			for taken[o.at] {
				o.at = (o.at + o.skip) % size
			}
			slots[o.at], taken[o.at] = uint16(i), true
			if left--; left == 0 {
				return slots
			}
		}
	}
}

// next goes on to the following slots if a slot's backend is out, so a retry goes to the same place every time.
func (m *maglev) next(r request) *backend {
	n := uint64(len(m.slots))
	if n == 0 {
		return nil
	}
	at := hashKey(r.client) % n
	for i := range n {
		be := m.backends[m.slots[(at+i)%n]]
		if r.takes(be) && r.claim(be) {
			return be
		}
		if i == 0 && !r.any(m.backends) {
			return nil
		}
	}
	return drawAny(&r, m.backends)
}

func (m *maglev) follow(backends []*backend) scheduler { return newMaglev(backends, nil) }
