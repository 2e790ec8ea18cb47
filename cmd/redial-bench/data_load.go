package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"
	"unsafe"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// dataSample is one measurement of one load.
type dataSample struct {
	Elapsed  time.Duration `json:"elapsed"` // nanoseconds
	CPU      time.Duration `json:"cpu"`     // of the proxy, all of it
	Done     int           `json:"done"`    // short connections, or round trips
	Bytes    int64         `json:"bytes"`   // of bulk streams
	P50      time.Duration `json:"p50"`     // of what is done
	P99      time.Duration `json:"p99"`
	Failed   int           `json:"failed"`   // connections that were refused, reset or answered wrongly
	Resident int64         `json:"resident"` // bytes, of the proxy at the end
	FDs      int           `json:"fds"`
}

// dataLoad is the client: numbers of connections of each kind, all served by one thread.
type dataLoad struct {
	Short, Trips, Take, Give, Idle int
	// Pace is how many bytes per second all downloads take together; 0: what they get. Then short connections are begun at
	// fixed times as well, 50 a second each, so that every system has the same to do.
	Pace int64

	remote  unix.RawSockaddrInet4
	epoll   int
	clients []*dataClient // by slot
	start   time.Time     // of the pace
	taken   int64         // bytes, since then
	took    []uint32      // nanoseconds
	sample  dataSample
	buf     []byte
}

// dataClient is one connection, or one after the other.
type dataClient struct {
	slot  int32
	fd    int
	kind  byte // what it asks for
	once  bool // it closes after one answer, and connects again
	idle  bool // it asks once and stays
	sent  bool
	got   int
	since time.Time
	next  time.Time // when a paced client connects again; zero: it is connected
}

// paceEvery is how often a paced client connects.
const paceEvery = 20 * time.Millisecond

func dataLoadCommand() *cobra.Command {
	l := &dataLoad{buf: make([]byte, bulkSize), took: make([]uint32, 0, 4<<20)}
	var pids []int
	var duration time.Duration
	cmd := &cobra.Command{
		Use:    "data-load ADDRESS",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			remote, err := netip.ParseAddrPort(args[0])
			if err != nil {
				return err
			}
			if err := l.measure(remote, duration, pids); err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(l.sample)
		},
	}
	f := cmd.Flags()
	f.IntVar(&l.Short, "short", 0, "clients that connect, ask once and close, again and again")
	f.IntVar(&l.Trips, "trips", 0, "clients that ask again and again")
	f.IntVar(&l.Take, "upload", 0, "streams to the backend")
	f.IntVar(&l.Give, "download", 0, "streams from the backend")
	f.IntVar(&l.Idle, "idle", 0, "clients that ask once and stay")
	f.Int64Var(&l.Pace, "pace", 0, "bytes per second that downloads take together; short connections are then paced too")
	f.DurationVar(&duration, "for", time.Second, "how long")
	f.IntSliceVar(&pids, "pids", nil, "processes whose CPU time is counted")
	return cmd
}

func (l *dataLoad) measure(remote netip.AddrPort, duration time.Duration, pids []int) (err error) {
	port := remote.Port()
	l.remote = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: remote.Addr().As4(), Port: port<<8 | port>>8}
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	quietly()
	for _, k := range []struct {
		n    int
		like dataClient
	}{
		{l.Short, dataClient{kind: askEcho, once: true}}, {l.Trips, dataClient{kind: askEcho}},
		{l.Take, dataClient{kind: askTake}}, {l.Give, dataClient{kind: askGive}}, {l.Idle, dataClient{kind: askEcho, idle: true}},
	} {
		for range k.n {
			c := k.like
			c.slot = int32(len(l.clients))
			l.clients = append(l.clients, &c)
			if err := l.connect(&c); err != nil {
				return err
			}
			if c.idle && c.slot%64 == 63 { // not all at once
				if err := l.run(5 * time.Millisecond); err != nil {
					return err
				}
			}
		}
	}
	if err := l.run(max(warmUp, duration/5)); err != nil {
		return err
	}
	l.took, l.sample = l.took[:0], dataSample{}
	before, err := cpuTime(pids)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := l.run(duration); err != nil {
		return err
	}
	s := &l.sample
	s.Elapsed = time.Since(start)
	after, err := cpuTime(pids)
	if err != nil {
		return err
	}
	used, err := footprintOf(pids)
	if err != nil {
		return err
	}
	s.CPU, s.Resident, s.FDs, s.Done = after-before, used.Resident, used.FDs, len(l.took)
	slices.Sort(l.took)
	s.P50, s.P99 = percentile(l.took, 50), percentile(l.took, 99)
	return nil
}

func (l *dataLoad) run(duration time.Duration) error {
	events := make([]unix.EpollEvent, 256)
	deadline := time.Now().Add(duration)
	for now := time.Now(); now.Before(deadline); now = time.Now() {
		wait := 10 * time.Millisecond
		if l.Pace > 0 {
			wait = time.Millisecond
			if err := l.keepPace(now); err != nil {
				return err
			}
		}
		n, errno := rawEpollWait(l.epoll, events, wait)
		if errno != 0 && errno != unix.EINTR {
			return fmt.Errorf("waiting for answers: %w", errno)
		}
		for _, e := range events[:max(n, 0)] {
			if err := l.serve(l.clients[e.Fd], e.Events); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepPace reads what downloads may have by now, and begins the connections that are due.
func (l *dataLoad) keepPace(now time.Time) error {
	if l.start.IsZero() {
		l.start = now
	}
	allowed := int64(float64(l.Pace) * now.Sub(l.start).Seconds())
	for progress := true; progress && l.taken < allowed; {
		progress = false
		for _, c := range l.clients {
			if c.kind != askGive || !c.sent {
				continue
			}
			n, errno := rawRead(c.fd, l.buf[:64<<10])
			if n > 0 && errno == 0 {
				l.taken, l.sample.Bytes, progress = l.taken+int64(n), l.sample.Bytes+int64(n), true
			}
		}
	}
	for _, c := range l.clients {
		if due := c.next; !due.IsZero() && !now.Before(due) {
			if err := l.connect(c); err != nil {
				return err
			}
			c.since = due // it has waited since then
		}
	}
	return nil
}

func (l *dataLoad) connect(c *dataClient) error {
	fd, err := tcpSocket()
	if err != nil {
		return err
	}
	c.fd, c.sent, c.got, c.since, c.next = fd, false, 0, time.Now(), time.Time{}
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&l.remote)), unix.SizeofSockaddrInet4)
	if errno != 0 && errno != unix.EINPROGRESS {
		return fmt.Errorf("connecting: %w", errno)
	}
	interest := uint32(unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET)
	switch c.kind { // streams are served in turn with the others
	case askTake:
		interest = unix.EPOLLOUT
	case askGive:
		interest = unix.EPOLLIN | unix.EPOLLOUT
	}
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: interest, Fd: c.slot})
}

// again starts a client anew.
func (l *dataLoad) again(c *dataClient) error {
	rawClose(c.fd)
	if c.once && l.Pace > 0 {
		c.next = c.since.Add(paceEvery)
		return nil
	}
	return l.connect(c)
}

// serve goes on with one client.
func (l *dataLoad) serve(c *dataClient, events uint32) error {
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		return l.fail(c)
	}
	if c.kind == askTake {
		l.buf[0] = askTake
		n, errno := rawWrite(c.fd, l.buf)
		l.sample.Bytes += int64(max(n, 0))
		if errno != 0 && errno != unix.EAGAIN {
			return l.fail(c)
		}
		return nil
	}
	if !c.sent && events&unix.EPOLLOUT != 0 {
		c.sent = true
		l.buf[0] = c.kind
		if _, errno := rawWrite(c.fd, l.buf[:requestSize]); errno != 0 {
			return l.fail(c)
		}
		if c.kind == askGive {
			interest := uint32(unix.EPOLLIN)
			if l.Pace > 0 {
				interest = 0
			}
			return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_MOD, c.fd, &unix.EpollEvent{Events: interest, Fd: c.slot})
		}
	}
	if events&unix.EPOLLIN == 0 {
		return nil
	}
	if c.kind == askGive {
		n, errno := rawRead(c.fd, l.buf)
		l.sample.Bytes += int64(max(n, 0))
		if errno != 0 && errno != unix.EAGAIN || n == 0 {
			return l.fail(c)
		}
		return nil
	}
	n, errno := rawRead(c.fd, l.buf[:2*requestSize])
	if errno == unix.EAGAIN {
		return nil
	}
	if errno != 0 || n == 0 || l.buf[0] != askEcho && c.got == 0 {
		return l.fail(c)
	}
	if c.got += n; c.got < requestSize || c.idle {
		return nil
	}
	now := time.Now()
	if len(l.took) < cap(l.took) {
		l.took = append(l.took, uint32(min(now.Sub(c.since), time.Duration(^uint32(0)))))
	}
	if c.once {
		return l.again(c)
	}
	c.got, c.since = 0, now
	l.buf[0] = askEcho
	if _, errno := rawWrite(c.fd, l.buf[:requestSize]); errno != 0 {
		return l.fail(c)
	}
	return nil
}

func (l *dataLoad) fail(c *dataClient) error {
	l.sample.Failed++
	return l.again(c)
}
