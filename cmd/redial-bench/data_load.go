package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// dataSample is one measurement of one load.
type dataSample struct {
	Elapsed time.Duration `json:"elapsed"` // nanoseconds
	CPU     time.Duration `json:"cpu"`     // of the proxy, all of it
	Done    int           `json:"done"`    // short connections, or round trips
	Bytes   int64         `json:"bytes"`   // of bulk streams
	P50     time.Duration `json:"p50"`     // of what is done
	P99     time.Duration `json:"p99"`
	Failed  int           `json:"failed"` // connections that were refused, reset or not answered, from the first on
	Wrong   int           `json:"wrong"`  // those that brought other bytes than were sent
	Begun   int           `json:"begun"`  // connections, from the first on
	Kept    int           `json:"kept"`   // connections that are there for the whole of it
	Idle    int           `json:"idle"`   // those of them that say nothing
	Before  footprint     `json:"before"` // of the proxy, without them
	During  footprint     `json:"during"` // and with them
}

// dataLoad is the client: numbers of connections of each kind, all served by one thread.
type dataLoad struct {
	Short, Trips, Take, Give, Idle int
	// Pace is how many bytes per second all downloads take together; 0: what they get. Then short connections are begun at
	// fixed times as well, 50 a second each, so that every system has the same to do.
	Pace int64

	remotes []unix.RawSockaddrInet4 // connections go to one after the other
	epoll   int
	clients []*dataClient // by slot
	next    uint64        // number of a request
	start   time.Time     // of the pace
	taken   int64         // bytes, since then
	ending  int           // uploads whose verdict is awaited
	gone    int           // clients that were to be idle
	took    []uint32      // nanoseconds
	sample  dataSample
	buf     []byte
}

// paceEvery is how often a paced client connects.
const paceEvery = 20 * time.Millisecond

func dataLoadCommand() *cobra.Command {
	l := &dataLoad{buf: make([]byte, bulkSize), took: make([]uint32, 0, 4<<20)}
	var pids []int
	var duration time.Duration
	cmd := &cobra.Command{
		Use:    "data-load ADDRESS...",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			for _, arg := range args {
				remote, err := netip.ParseAddrPort(arg)
				if err != nil {
					return err
				}
				port := remote.Port()
				l.remotes = append(l.remotes, unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: remote.Addr().As4(), Port: port<<8 | port>>8})
			}
			raiseFileLimit()
			quietly()
			if err := l.measure(duration, pids); err != nil {
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

func (l *dataLoad) measure(duration time.Duration, pids []int) (err error) {
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	s := &l.sample
	if s.Before, err = footprintOf(pids); err != nil {
		return err
	}
	if err := l.begin(); err != nil {
		return err
	}
	if err := l.run(max(warmUp, duration/5)); err != nil {
		return err
	}
	l.took, s.Bytes = l.took[:0], 0
	before, err := cpuTime(pids)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := l.run(duration); err != nil {
		return err
	}
	s.Elapsed = time.Since(start)
	after, err := cpuTime(pids)
	if err != nil {
		return err
	}
	if s.During, err = footprintOf(pids); err != nil {
		return err
	}
	s.CPU, s.Done, s.Kept = after-before, len(l.took), l.Trips+l.Take+l.Give+s.Idle
	slices.Sort(l.took)
	s.P50, s.P99 = percentile(l.took, 50), percentile(l.took, 99)
	return l.end()
}

// begin connects all clients.
func (l *dataLoad) begin() error {
	for _, k := range []struct {
		n    int
		like dataClient
	}{
		{l.Short, dataClient{ask: askEcho, once: true}}, {l.Trips, dataClient{ask: askEcho}},
		{l.Take, dataClient{ask: askTake}}, {l.Give, dataClient{ask: askGive}}, {l.Idle, dataClient{ask: askEcho, idle: true}},
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
	// A proxy may have no room for all that would be idle. Once two seconds have brought none, there is not: a SYN that was
	// dropped comes again within one.
	for seen, since := l.sample.Idle, time.Now(); l.sample.Idle+l.gone < l.Idle && time.Since(since) < 2*time.Second; {
		if err := l.run(10 * time.Millisecond); err != nil {
			return err
		}
		if l.sample.Idle != seen {
			seen, since = l.sample.Idle, time.Now()
		}
	}
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

// keepPace reads what downloads may have by now, and begins the connections that are due. What a stall has left behind
// by more than 50 ms is forgiven, and not all is caught up with at once: the answers to short connections are not to wait
// for it.
func (l *dataLoad) keepPace(now time.Time) error {
	if l.start.IsZero() {
		l.start = now
	}
	allowed := int64(float64(l.Pace) * now.Sub(l.start).Seconds())
	l.taken = max(l.taken, allowed-l.Pace/20)
	for passes := 0; passes < 4 && l.taken < allowed; passes++ {
		for _, c := range l.clients {
			if c.ask != askGive || !c.sent {
				continue
			}
			n, err := l.download(c, l.buf[:64<<10])
			if err != nil {
				return err
			}
			l.taken += int64(n)
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

// end ends the uploads and waits until the backend has said what it got.
func (l *dataLoad) end() error {
	for _, c := range l.clients {
		if c.ask != askTake {
			continue
		}
		unix.Shutdown(c.fd, unix.SHUT_WR) // of one that is broken, the event tells
		c.ending = true
		l.ending++
		if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_MOD, c.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: c.slot}); err != nil {
			return err
		}
	}
	for since := time.Now(); l.ending > 0 && time.Since(since) < 20*time.Second; {
		if err := l.run(10 * time.Millisecond); err != nil {
			return err
		}
	}
	l.sample.Failed += l.ending
	return nil
}
