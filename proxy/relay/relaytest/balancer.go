package relaytest

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// balancer is a Balancer that keeps the relay to its contract: picks go round over a fixed list; misuse is recorded.
type balancer struct {
	mu       sync.Mutex
	backends []netip.AddrPort
	next     int
	picks    []netip.AddrPort // every pick, in order
	failed   []netip.AddrPort // every failure reported
	open     int              // picked, not yet reported
	mostOpen int
	asks     bool                   // for destinations
	dialled  []netip.Addr           // those
	limit    int                    // of picks and connections of each backend; 0: none
	used     map[netip.AddrPort]int // if there is one
	freed    chan struct{}
	active   map[netip.AddrPort]int
	misuse   error
	onPick   func()
	hedge    time.Duration    // how long each may be silent; 0: for ever
	retries  int              // how many there have been
	refuses  bool             // them
	works    bool             // none is needed
	overdue  []netip.AddrPort // those that were said to be
	trusts   bool             // that others are not
	answered []netip.AddrPort // every success reported
}

func balance(backends ...netip.AddrPort) *balancer {
	return &balancer{backends: backends, active: map[netip.AddrPort]int{}, used: map[netip.AddrPort]int{}}
}

func (b *balancer) Pick(_ netip.Addr, tried []netip.AddrPort) (netip.AddrPort, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.onPick != nil {
		b.onPick()
	}
	for range b.backends {
		a := b.backends[b.next%len(b.backends)]
		b.next++
		if !slices.Contains(tried, a) && (b.limit == 0 || b.used[a] < b.limit) {
			b.used[a]++
			b.picks = append(b.picks, a)
			b.open++
			b.mostOpen = max(b.mostOpen, b.open)
			return a, true
		}
	}
	return netip.AddrPort{}, false
}

func (b *balancer) PickFor(client, destination netip.Addr, tried []netip.AddrPort) (netip.AddrPort, bool) {
	b.mu.Lock()
	b.dialled = append(b.dialled, destination)
	b.mu.Unlock()
	return b.Pick(client, tried)
}

func (b *balancer) WantsDestination() bool { return b.asks }

func (b *balancer) Report(_ netip.Addr, a netip.AddrPort, _ time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open--; b.open < 0 {
		b.misuse = errors.New("Report without Pick")
	}
	if err != nil {
		b.free(a)
	}
	if errors.Is(err, context.Canceled) {
		return // says nothing about the backend
	}
	if err != nil {
		b.failed = append(b.failed, a)
		return
	}
	b.active[a]++
	b.answered = append(b.answered, a)
}

func (b *balancer) Fail(_ netip.Addr, a netip.AddrPort, _ error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.active[a] <= 0 {
		b.misuse = errors.New("Fail without Report")
	}
	b.failed = append(b.failed, a)
}

func (b *balancer) Release(a netip.AddrPort) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free(a)
	if b.active[a]--; b.active[a] < 0 {
		b.misuse = errors.New("Release without Report")
	}
}

func (b *balancer) free(a netip.AddrPort) {
	b.used[a]--
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}

func (b *balancer) Freed(tried []netip.AddrPort) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	untried := false
	for _, a := range b.backends {
		if !slices.Contains(tried, a) {
			untried = true
			if b.limit == 0 || b.used[a] < b.limit {
				now := make(chan struct{})
				close(now)
				return now
			}
		}
	}
	if !untried {
		return nil
	}
	if b.freed == nil {
		b.freed = make(chan struct{})
	}
	return b.freed
}

func (b *balancer) HedgeDelay(netip.AddrPort) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return cmp.Or(b.hedge, never)
}

func (b *balancer) Overdue(a netip.AddrPort, wait time.Duration, _ []netip.AddrPort) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if wait > 0 {
		b.overdue = append(b.overdue, a)
	}
	return b.trusts
}

func (b *balancer) Working() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.works
}

func (b *balancer) Retry() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retries++
	return !b.refuses
}

func (b *balancer) picked() []netip.AddrPort {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.picks)
}

func (b *balancer) failures() []netip.AddrPort {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.failed)
}

// heard returns what a field says now.
func heard[T any](b *balancer, field *[]T) []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(*field)
}

func (b *balancer) balanced() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.active {
		if n != 0 {
			return false
		}
	}
	return b.open == 0 && b.misuse == nil
}
