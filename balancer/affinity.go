package balancer

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// maxPins bounds the clients remembered by one balancer: some 12 MiB at the worst.
const maxPins = 65536

// sweepPerPin is how many expired pins each new one clears away. Two rather than one, so that the table shrinks.
const sweepPerPin = 2

// pins is the pin table, from the least to the most recently used. Whether a pin is alive depends on the view that asks.
//
// It is a plain cache with the time of last use in the entry: golang-lru's expirable cache starts a goroutine
// that nothing stops, and does not renew an entry on use.
type pins struct {
	cache     *lru.Cache[netip.Addr, *pin]
	evictions *atomic.Uint64

	// pinning is held while a pin is made or dropped, around the cache's own lock, so that looking and replacing are
	// one step.
	pinning sync.Mutex
}

type pin struct {
	backend *backend
	used    atomic.Int64 // time.Duration since the balancer was born
}

func newPins(size int, evictions *atomic.Uint64) *pins {
	cache, err := lru.New[netip.Addr, *pin](size)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &pins{cache: cache, evictions: evictions}
}

// setAffinity applies an affinity setting to v before it is published. A changed timeout judges existing pins by their
// last use, except that one which had run out does not come back: otherwise a longer timeout would bring back just those
// that no pick had happened to clear away.
func (v *view) setAffinity(timeout time.Duration, b *Balancer) {
	switch {
	case timeout <= 0:
		v.pins, v.timeout = nil, 0
	case v.pins == nil:
		v.pins, v.timeout, v.expired = newPins(b.maxPins, &b.evictions), timeout, -1
	case v.timeout != timeout:
		v.expired = max(v.expired, b.now()-v.timeout)
		v.timeout = timeout
	}
}

// pinKey is the address that clients are told apart by.
func pinKey(client netip.Addr) netip.Addr { return client.Unmap().WithZone("") }

// pick claims the backend of the client's live pin, or else one of the scheduler's, and pins the client to that. A live
// pin to a tried or full backend is passed over but left alone; one to an ejected or quiesced backend gives way, as
// after a failed dial.
func (p *pins) pick(r *request, now time.Duration) *backend {
	client := pinKey(r.client)
	if be := p.live(r.view, client, now); be != nil && r.keeps(be) && r.claim(be) {
		return be
	}
	p.pinning.Lock()
	defer p.pinning.Unlock()
	pinned := p.live(r.view, client, now)
	if pinned != nil && r.keeps(pinned) && r.claim(pinned) {
		return pinned
	}
	be := r.choose()
	if be != nil && (pinned == nil || r.out(pinned) || r.view.quiesced(pinned)) {
		p.add(r.view, client, be, now)
	}
	return be
}

// keeps reports whether the connection may go to the backend that its client is pinned to.
func (r *request) keeps(pinned *backend) bool {
	return r.wants(pinned) && !r.out(pinned) && !r.view.quiesced(pinned)
}

// refresh marks the client's pin used, and pins the client to be if it has no live pin.
func (p *pins) refresh(v *view, client netip.Addr, be *backend, now time.Duration) {
	if held, ok := p.cache.Peek(client); ok && held.backend == be {
		p.cache.Get(client) // moves it up
		held.used.Store(int64(now))
		return
	}
	p.pinning.Lock()
	defer p.pinning.Unlock()
	if p.live(v, client, now) == nil {
		p.add(v, client, be, now)
	}
}

// drop ends the client's pin if it is to addr.
func (p *pins) drop(client netip.Addr, addr netip.AddrPort) {
	p.pinning.Lock()
	defer p.pinning.Unlock()
	if held, ok := p.cache.Peek(client); ok && held.backend.addr == addr {
		p.cache.Remove(client)
	}
}

// live returns the backend that the client is pinned to as v sees it, or nil. It peeks: only use moves a pin up, which
// keeps the order of the cache that of last use, and leaves picks with a read lock.
func (p *pins) live(v *view, client netip.Addr, now time.Duration) *backend {
	held, ok := p.cache.Peek(client)
	if !ok || !held.alive(v, now) {
		return nil
	}
	return held.backend
}

// add pins the client to be. pinning is held.
func (p *pins) add(v *view, client netip.Addr, be *backend, now time.Duration) {
	for range sweepPerPin {
		oldest, held, ok := p.cache.GetOldest()
		if !ok || held.alive(v, now) {
			break
		}
		p.cache.Remove(oldest)
	}
	fresh := &pin{backend: be}
	fresh.used.Store(int64(now))
	if p.cache.Add(client, fresh) {
		p.evictions.Add(1)
	}
}

// count returns the number of live pins as v sees them.
func (p *pins) count(v *view, now time.Duration) int {
	n := 0
	for _, held := range p.cache.Values() {
		if held.alive(v, now) {
			n++
		}
	}
	return n
}

// alive reports whether the pin has not run out and its backend is still the same incarnation.
func (held *pin) alive(v *view, now time.Duration) bool {
	used := time.Duration(held.used.Load())
	return used > v.expired && now-used < v.timeout && v.holds(held.backend)
}
