package relay

import "golang.org/x/sys/unix"

const (
	// pipeSize is asked for; an unprivileged process may get less (pipe(7)). Measured on two processors: 256 KiB take 1.5
	// times the processor time per byte, 1 MiB takes as little, but holds up the other connections.
	pipeSize   = 512 << 10
	sparePipes = 4 // kept by a loop while it has connections, beside as many as are in use
)

// pipe is what splice(2) moves bytes through. It belongs to one direction of one connection while there are bytes in it.
type pipe struct{ r, w int }

// pipes are those that no direction holds. Each is charged for its two descriptors like a connection, so that a pipe never
// takes the place of a client: when few descriptors are left bytes are copied.
type pipes struct {
	spare []*pipe
	used  int // by directions of the loop's connections
}

// take returns an empty pipe, or nil if there is none to be had.
func (p *pipes) take(r *Relay) *pipe {
	if n := len(p.spare); n > 0 {
		t := p.spare[n-1]
		p.spare = p.spare[:n-1]
		p.used++
		return t
	}
	if r.fds.used.Load() > r.fds.most*7/8 || !r.fds.TryAcquire(fdsPerConnection) {
		return nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		r.fds.Release(fdsPerConnection)
		return nil
	}
	unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize) // what is refused leaves 64 KiB
	p.used++
	return &pipe{r: fds[0], w: fds[1]}
}

// give takes back a pipe that is empty. To make one costs as much as to move some hundred kilobytes: so as many are kept as
// streams are likely to need next.
func (p *pipes) give(r *Relay, t *pipe) {
	p.used--
	p.spare = append(p.spare, t)
	p.trim(r)
}

// discard takes back one with bytes in it.
func (p *pipes) discard(r *Relay, t *pipe) {
	p.used--
	t.close(r)
	p.trim(r)
}

func (p *pipes) trim(r *Relay) {
	for len(p.spare) > p.used+sparePipes {
		last := len(p.spare) - 1
		p.spare[last].close(r)
		p.spare = p.spare[:last]
	}
}

// close closes the spare ones.
func (p *pipes) close(r *Relay) {
	for _, t := range p.spare {
		t.close(r)
	}
	p.spare = nil
}

func (t *pipe) close(r *Relay) {
	closeRaw(t.r)
	closeRaw(t.w)
	r.fds.Release(fdsPerConnection)
}

// pipes is how many c has.
func (c *conn) pipes() (n int) {
	for _, h := range []*half{&c.in, &c.out} {
		if h.pipe != nil {
			n++
		}
	}
	return n
}
