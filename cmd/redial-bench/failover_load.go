package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"
	"unsafe"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// failoverSample is what became of clients that were begun at fixed times.
type failoverSample struct {
	Asked    int           `json:"asked"`
	Failures failures      `json:"failures"`
	P50      time.Duration `json:"p50"` // nanoseconds from when a client was to begin until it had its answer, of those that got one
	P99      time.Duration `json:"p99"`
	Max      time.Duration `json:"max"`
	// Late is how long after its time the latest client was begun: what the machine alone has added to latencies.
	Late time.Duration `json:"late"`
}

// laterWaves is how many waves follow the first, each when the one before is over. They count as one, so that the machine's
// moods even out.
const laterWaves = 4

// failoverLoad is the clients, all served by one thread: each connects, asks once, and closes. They begin when it is their
// time, whether or not earlier ones have been answered, so that a stall is seen in full.
type failoverLoad struct {
	Rate           int           // clients per second
	Wave           int           // or clients at once, and laterWaves times once more
	For            time.Duration // that are counted
	Warm           time.Duration // that are not, before
	Patience       time.Duration // from when a client was to begin
	GreetedByPeers bool          // clients wait for the backend's greeting, and ask then

	remote   unix.RawSockaddrInet4
	epoll    int
	timer    int
	next     uint64 // number of a request
	greeting [requestSize]byte

	clients []failoverClient // of the phase, in the order of their times
	begun   int
	open    int // those that are not over
	oldest  int // all before are over
	took    []time.Duration
	sample  failoverSample
}

func failoverLoadCommand() *cobra.Command {
	l := &failoverLoad{}
	cmd := &cobra.Command{
		Use:    "failover-load ADDRESS",
		Short:  `Warms up, prints "ready", waits for a line, and prints what was measured then`,
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			remote, err := netip.ParseAddrPort(args[0])
			if err != nil {
				return err
			}
			samples, err := l.measure(remote)
			if err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(samples)
		},
	}
	f := cmd.Flags()
	f.IntVar(&l.Rate, "rate", 0, "clients per second")
	f.IntVar(&l.Wave, "wave", 0, "clients at once, again and again, instead of a rate")
	f.DurationVar(&l.For, "for", time.Second, "how long, with a rate")
	f.DurationVar(&l.Warm, "warm", 0, "how long before that, with a rate")
	f.DurationVar(&l.Patience, "patience", 10*time.Second, "how long a client waits")
	f.BoolVar(&l.GreetedByPeers, "greeted", false, "the backend speaks first")
	return cmd
}

func (l *failoverLoad) prepare(remote netip.AddrPort) (err error) {
	port := remote.Port()
	l.remote = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: remote.Addr().As4(), Port: port<<8 | port>>8}
	fillRequest(&l.greeting, greeting)
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if l.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return err
	}
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, l.timer, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1})
}

func (l *failoverLoad) measure(remote netip.AddrPort) (samples []failoverSample, err error) {
	raiseFileLimit()
	if err := l.prepare(remote); err != nil {
		return nil, err
	}
	if l.Rate < 1 && l.Wave < 1 {
		return nil, errors.New("neither --rate nor --wave")
	}
	quietly()
	if l.Rate > 0 {
		if err := l.run(1, l.count(l.Warm), time.Second/time.Duration(l.Rate)); err != nil {
			return nil, err
		}
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return nil, fmt.Errorf("waiting to be told to go on: %w", err)
	}
	if l.Wave == 0 {
		err := l.run(1, l.count(l.For), time.Second/time.Duration(l.Rate))
		return []failoverSample{l.sample}, err
	}
	for _, waves := range []int{1, laterWaves} {
		if err := l.run(waves, l.Wave, 0); err != nil {
			return nil, err
		}
		samples = append(samples, l.sample)
	}
	return samples, nil
}

func (l *failoverLoad) count(d time.Duration) int {
	return int(int64(l.Rate) * int64(d) / int64(time.Second))
}

// run makes a sample of waves of clients.
func (l *failoverLoad) run(waves, n int, interval time.Duration) error {
	l.took, l.sample = make([]time.Duration, 0, waves*n), failoverSample{Asked: waves * n}
	for range waves {
		if err := l.wave(n, interval); err != nil {
			return err
		}
	}
	slices.Sort(l.took)
	l.sample.P50, l.sample.P99, l.sample.Max = percentile(l.took, 50), percentile(l.took, 99), percentile(l.took, 100)
	return nil
}

// wave begins n clients at an interval and waits until all of them are over.
func (l *failoverLoad) wave(n int, interval time.Duration) error {
	l.clients, l.begun, l.open, l.oldest = make([]failoverClient, n), 0, 0, 0
	start := time.Now().Add(5 * time.Millisecond)
	for i := range l.clients {
		l.clients[i] = failoverClient{id: l.next, due: start.Add(time.Duration(i) * interval)}
		l.next++
	}
	// epoll_wait(2) counts in milliseconds, which is too coarse: a timer ticks whenever a client is due.
	tick := unix.ItimerSpec{
		Interval: unix.NsecToTimespec(int64(max(interval, 50*time.Microsecond))),
		Value:    unix.NsecToTimespec(int64(max(time.Until(start), 1))),
	}
	if err := unix.TimerfdSettime(l.timer, 0, &tick, nil); err != nil {
		return err
	}
	events := make([]unix.EpollEvent, 256)
	for l.begun < n || l.open > 0 {
		// At most so many in a row: those that are under way wait meanwhile.
		for k := 0; k < 16 && l.begun < n && !time.Now().Before(l.clients[l.begun].due); k++ {
			if err := l.begin(l.begun); err != nil {
				return err
			}
		}
		wait := 10 * time.Millisecond
		if l.begun < n && !time.Now().Before(l.clients[l.begun].due) {
			wait = 0
		}
		ready, errno := rawEpollWait(l.epoll, events, wait)
		if errno != 0 && errno != unix.EINTR {
			return fmt.Errorf("waiting for answers: %w", errno)
		}
		for _, e := range events[:ready] {
			if e.Fd < 0 {
				var count [8]byte
				rawRead(l.timer, count[:])
			} else if c := &l.clients[e.Fd]; !c.over {
				l.serve(c, e.Events)
			}
		}
		l.giveUp(time.Now())
	}
	return nil
}

func (l *failoverLoad) begin(i int) error {
	c := &l.clients[i]
	fd, err := tcpSocket()
	if err != nil {
		return err
	}
	c.fd = fd
	l.sample.Late = max(l.sample.Late, time.Since(c.due))
	l.begun++
	l.open++
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&l.remote)), unix.SizeofSockaddrInet4)
	if errno != 0 && errno != unix.EINPROGRESS {
		return fmt.Errorf("connecting: %w", errno)
	}
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET, Fd: int32(i)})
}

// giveUp ends the clients that have waited too long. They are in the order of their times, so it stops at the first that has not.
func (l *failoverLoad) giveUp(now time.Time) {
	for ; l.oldest < l.begun; l.oldest++ {
		c := &l.clients[l.oldest]
		if c.over {
			continue
		}
		if now.Sub(c.due) < l.Patience {
			return
		}
		l.fail(c, unix.ETIMEDOUT)
	}
}
