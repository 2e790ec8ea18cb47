package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// udpSample is one measurement of the synchronous load.
type udpSample struct {
	Rate   float64       `json:"rate"` // round trips per second
	P50    time.Duration `json:"p50"`  // nanoseconds
	P99    time.Duration `json:"p99"`
	CPU    time.Duration `json:"cpu"` // of the proxy, per datagram; a round trip is two
	Trips  int           `json:"trips"`
	Faults udpFaults     `json:"faults"`
}

// udpLoad is the load generator: clients that each send a request and wait for its answer.
type udpLoad struct {
	requests []udpRequest
	epoll    int // none for a single client, which just waits
	next     uint64
	took     []uint32 // nanoseconds
	faults   udpFaults
	reply    [2 * requestSize]byte
}

func udpLoadCommand() *cobra.Command {
	var clients int
	var pids []int
	var duration time.Duration
	cmd := &cobra.Command{
		Use:    "udp-load ADDRESS",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			remote, err := netip.ParseAddrPort(args[0])
			if err != nil {
				return err
			}
			l, err := newUDPLoad(remote, clients)
			if err != nil {
				return err
			}
			sample, err := l.measure(duration, pids)
			if err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(sample)
		},
	}
	cmd.Flags().IntVar(&clients, "clients", 1, "sockets")
	cmd.Flags().DurationVar(&duration, "for", time.Second, "how long")
	cmd.Flags().IntSliceVar(&pids, "pids", nil, "processes whose CPU time is counted")
	return cmd
}

// quietly turns off what would interrupt a thread that sits in raw system calls: the garbage collector would wait for it.
func quietly() {
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
}

func newUDPLoad(remote netip.AddrPort, clients int) (*udpLoad, error) {
	l := &udpLoad{requests: make([]udpRequest, clients), took: make([]uint32, 0, 4<<20), epoll: -1}
	var err error
	if clients > 1 {
		if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
			return nil, err
		}
	}
	for i := range l.requests {
		fd, err := udpSocket(netip.AddrPort{}, remote)
		if err != nil {
			return nil, err
		}
		l.requests[i].fd = fd
		if l.epoll >= 0 {
			if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}); err != nil {
				return nil, err
			}
		}
	}
	return l, nil
}

// warmUp is not measured: sessions are made and the processor finds its speed.
const warmUp = 200 * time.Millisecond

func (l *udpLoad) measure(duration time.Duration, pids []int) (*udpSample, error) {
	quietly()
	for i := range l.requests {
		if err := l.send(&l.requests[i], time.Now()); err != nil {
			return nil, err
		}
	}
	if err := l.run(warmUp); err != nil {
		return nil, err
	}
	l.took = l.took[:0]
	before, err := cpuTime(pids)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := l.run(duration); err != nil {
		return nil, err
	}
	elapsed := time.Since(start)
	after, err := cpuTime(pids)
	if err != nil {
		return nil, err
	}
	s := &udpSample{Trips: len(l.took), Rate: float64(len(l.took)) / elapsed.Seconds(), Faults: l.faults}
	if s.Trips > 0 {
		s.CPU = (after - before) / time.Duration(2*s.Trips)
	}
	slices.Sort(l.took)
	s.P50, s.P99 = percentile(l.took, 50), percentile(l.took, 99)
	return s, nil
}

// run goes on with all clients for so long. Requests stay on their way at its end.
func (l *udpLoad) run(duration time.Duration) error {
	events := make([]unix.EpollEvent, len(l.requests))
	deadline := time.Now().Add(duration)
	for now := time.Now(); now.Before(deadline); now = time.Now() {
		ready := 1
		if l.epoll >= 0 {
			var errno unix.Errno
			ready, errno = rawEpollWait(l.epoll, events, udpPatience/10)
			if errno != 0 && errno != unix.EINTR {
				return fmt.Errorf("waiting for answers: %w", errno)
			}
		}
		for i := range ready {
			if err := l.receive(&l.requests[events[i].Fd]); err != nil {
				return err
			}
		}
		if ready == 0 {
			if err := l.giveUp(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *udpLoad) send(r *udpRequest, now time.Time) error {
	l.next++
	r.write(l.next)
	r.sent = now
	errno := rawSend(r.fd, r.data[:])
	if errno == unix.ECONNREFUSED { // about the request before
		l.faults.Refused++
		errno = rawSend(r.fd, r.data[:])
	}
	if errno != 0 {
		return fmt.Errorf("sending a request: %w", errno)
	}
	return nil
}

// receive takes what has come for a client, and sends its next request if it was the answer.
func (l *udpLoad) receive(r *udpRequest) error {
	n, errno := rawReceive(r.fd, l.reply[:])
	now := time.Now()
	switch errno {
	case 0:
	case unix.EINTR:
		return nil
	case unix.EAGAIN:
		l.faults.Lost++
		return l.send(r, now)
	case unix.ECONNREFUSED:
		l.faults.Refused++
		time.Sleep(time.Millisecond)
		return l.send(r, now)
	default:
		return fmt.Errorf("receiving an answer: %w", errno)
	}
	switch r.judge(l.reply[:n]) {
	case late:
		return nil
	case wrong:
		l.faults.Wrong++
	case answered:
		if len(l.took) < cap(l.took) {
			l.took = append(l.took, uint32(min(now.Sub(r.sent), time.Duration(^uint32(0)))))
		}
	}
	return l.send(r, now)
}

// giveUp counts the requests that nobody answers and lets their clients go on.
func (l *udpLoad) giveUp() error {
	now := time.Now()
	for i := range l.requests {
		if r := &l.requests[i]; now.Sub(r.sent) > udpPatience {
			l.faults.Lost++
			if err := l.send(r, now); err != nil {
				return err
			}
		}
	}
	return nil
}
