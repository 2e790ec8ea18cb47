package balancer

import (
	"container/heap"
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxProbes bounds the probes under way. With more backends dead and silent than that, and due at a time, they wait.
	maxProbes = 64
	// probeTimeout is short of the second SYN (1 s, RFC 6298): a backend that needs it is of no use to a client, who is
	// not let wait as long.
	probeTimeout = 900 * time.Millisecond
)

// Prober tests ejected backends by dialling them in the background, so that no client's connection has to. There is one
// for all balancers of a process: an address is probed once, however many of them have ejected it.
type Prober struct {
	dial    func(ctx context.Context, addr netip.AddrPort) error
	running atomic.Bool
	news    chan struct{} // has room for one: the queue has changed

	mu      sync.Mutex // guards what follows; never held across a call to a Balancer or a dial
	probes  map[netip.AddrPort]*probe
	waiting probeQueue
}

// noProber is that of balancers without one.
var noProber = NewProber(nil)

// NewProber returns a Prober that tests a backend by dial, which returns nil if it answered. It starts nothing.
func NewProber(dial func(ctx context.Context, addr netip.AddrPort) error) *Prober {
	return &Prober{dial: dial, news: make(chan struct{}, 1), probes: map[netip.AddrPort]*probe{}}
}

// probe is one address to be probed.
type probe struct {
	addr  netip.AddrPort
	due   time.Time // of the earliest test
	tests []test
	index int // in the queue; -1 while it is being dialled
}

// test is a balancer that wants to know, and the ejection that it is about.
type test struct {
	balancer *Balancer
	backend  *backend
	ejection *ejection
	due      time.Time
}

func (p *Prober) add(b *Balancer, be *backend, e *ejection, due time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.enqueue(be.addr, test{b, be, e, due})
}

// enqueue adds tests of addr. mu is held.
func (p *Prober) enqueue(addr netip.AddrPort, tests ...test) {
	pr := p.probes[addr]
	if pr == nil {
		pr = &probe{addr: addr, index: -1}
		p.probes[addr] = pr
		defer heap.Push(&p.waiting, pr)
	}
	for _, t := range tests {
		if len(pr.tests) == 0 || t.due.Before(pr.due) {
			pr.due = t.due
		}
		pr.tests = append(pr.tests, t)
	}
	if pr.index >= 0 {
		heap.Fix(&p.waiting, pr.index)
	}
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// Run probes until ctx ends, and then waits for the dials under way, which end with it. While it does not run, ejected
// backends come back by a connection, as without a Prober. It returns nil, or an error if it is running already.
func (p *Prober) Run(ctx context.Context) error {
	if !p.running.CompareAndSwap(false, true) {
		return errors.New("the prober is running already")
	}
	defer p.running.Store(false)
	var dialling sync.WaitGroup
	defer dialling.Wait()
	slots := make(chan struct{}, maxProbes)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		pr, tests := p.nextDue(ctx, timer)
		if pr == nil {
			return nil
		}
		dialling.Go(func() {
			defer func() { <-slots }()
			p.run(ctx, pr, tests)
		})
	}
}

// nextDue waits for a probe to be due and takes it out of the queue, with its tests. It returns nil when ctx ends.
func (p *Prober) nextDue(ctx context.Context, timer *time.Timer) (*probe, []test) {
	for ctx.Err() == nil {
		pr, tests, wait := p.pop(time.Now())
		if pr != nil {
			return pr, tests
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-p.news:
		case <-ctx.Done():
		}
	}
	return nil, nil
}

// pop takes out the first probe if it is due, and otherwise says how long to wait for it.
func (p *Prober) pop(now time.Time) (*probe, []test, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		return nil, nil, time.Hour
	}
	if wait := p.waiting[0].due.Sub(now); wait > 0 {
		return nil, nil, wait
	}
	pr := heap.Pop(&p.waiting).(*probe)
	tests := pr.tests
	pr.tests = nil
	return pr, tests, 0
}

// run dials, unless nobody wants to know any more, and tells the outcome: an answer to all, a failure to those whose test
// was due.
func (p *Prober) run(ctx context.Context, pr *probe, tests []test) {
	now := time.Now()
	var due, later []test
	for _, t := range tests {
		switch {
		case !t.balancer.awaits(t.backend, t.ejection):
		case t.due.After(now):
			later = append(later, t)
		default:
			due = append(due, t)
		}
	}
	var err error
	if len(due) > 0 {
		dialCtx, cancel := context.WithTimeout(ctx, probeTimeout)
		err = p.dial(dialCtx, pr.addr)
		cancel()
	}
	switch {
	case len(due) == 0:
	case ctx.Err() != nil: // says nothing about the backend
		later = tests
	case err == nil:
		due, later = append(due, later...), nil
		fallthrough
	default:
		for _, t := range due {
			t.balancer.probed(t.backend, t.ejection, err)
		}
	}
	p.requeue(pr, later)
}

// requeue puts pr back with the tests that are left and those that have come meanwhile, or forgets it if there are none.
func (p *Prober) requeue(pr *probe, later []test) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.probes, pr.addr)
	if tests := append(later, pr.tests...); len(tests) > 0 {
		p.enqueue(pr.addr, tests...)
	}
}

// probeQueue is a heap of probes, the earliest first.
type probeQueue []*probe

func (q probeQueue) Len() int           { return len(q) }
func (q probeQueue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q probeQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *probeQueue) Push(x any) {
	pr := x.(*probe)
	pr.index = len(*q)
	*q = append(*q, pr)
}

func (q *probeQueue) Pop() any {
	last := len(*q) - 1
	pr := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	pr.index = -1
	return pr
}
