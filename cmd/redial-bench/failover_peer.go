package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// greeting is the number of the request that a backend which speaks first sends: no client's.
const greeting = 1 << 63

func failoverPeerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "failover-peer ADDRESS...",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			p := &failoverPeer{listening: map[int]int{}, conns: map[int]int{}, buf: make([]byte, 4096)}
			fillRequest(&p.greeting, greeting)
			for _, a := range args {
				addr, err := netip.ParseAddrPort(a)
				if err != nil {
					return err
				}
				p.pods = append(p.pods, &peerPod{addr: addr, listener: -1})
			}
			return p.serve()
		},
	}
}

// failoverPeer is all the backends: one thread, so that they cost a shared machine little. Each line of its standard input
// is an order ("gone 2"), answered by "ok" once it has been carried out.
type failoverPeer struct {
	pods      []*peerPod
	epoll     int
	listening map[int]int // the pods of listeners
	conns     map[int]int // the pods of connections
	greets    bool
	greeting  [requestSize]byte
	orders    []byte // what was read of the next one
	buf       []byte
}

type peerPod struct {
	addr     netip.AddrPort
	listener int // -1: gone
	resets   bool
}

func (p *failoverPeer) serve() (err error) {
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	for i := range p.pods {
		if err := p.listen(i); err != nil {
			return err
		}
	}
	if err := p.watch(0); err != nil {
		return err
	}
	quietly()
	if err := p.done(); err != nil {
		return err
	}
	events := make([]unix.EpollEvent, 256)
	for {
		n, errno := rawEpollWait(p.epoll, events, -time.Millisecond)
		if errno != 0 && errno != unix.EINTR {
			return fmt.Errorf("waiting for clients: %w", errno)
		}
		for _, e := range events[:n] {
			fd := int(e.Fd)
			if fd == 0 {
				if ended, err := p.obey(); ended || err != nil {
					return err
				}
			} else if pod, ok := p.listening[fd]; ok {
				p.accept(pod)
			} else if _, ok := p.conns[fd]; ok && !p.echo(fd) {
				p.close(fd)
			}
		}
	}
}

func (p *failoverPeer) watch(fd int) error {
	return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// done tells that an order has been carried out.
func (p *failoverPeer) done() error {
	_, err := os.Stdout.WriteString("ok\n")
	return err
}

// obey reads orders. The end of them is the end of the backends.
func (p *failoverPeer) obey() (ended bool, err error) {
	n, errno := rawRead(0, p.buf)
	if errno != 0 || n == 0 {
		return true, nil
	}
	p.orders = append(p.orders, p.buf[:n]...)
	for {
		line, rest, ok := bytes.Cut(p.orders, []byte("\n"))
		if !ok {
			return false, nil
		}
		p.orders = rest
		if err := p.carryOut(string(line)); err != nil {
			return true, fmt.Errorf("order %q: %w", line, err)
		}
		if err := p.done(); err != nil {
			return true, err
		}
	}
}

func (p *failoverPeer) carryOut(order string) error {
	what, number, _ := strings.Cut(order, " ")
	i, err := strconv.Atoi(number)
	if err != nil || i < 0 || what != "greet" && i >= len(p.pods) {
		return fmt.Errorf("no backend %q", number)
	}
	switch what {
	case "greet": // 1 or 0
		p.greets = i == 1
	case "well":
		p.pods[i].resets = false
		return p.listen(i)
	case "resets": // each connection as soon as it has been accepted
		p.pods[i].resets = true
		return p.listen(i)
	case "gone": // as a process that was killed
		p.leave(i)
	default:
		return fmt.Errorf("unknown order")
	}
	return nil
}

func (p *failoverPeer) listen(i int) error {
	pod := p.pods[i]
	if pod.listener >= 0 {
		return nil
	}
	fd, err := tcpSocket()
	if err != nil {
		return err
	}
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: pod.addr.Addr().As4(), Port: int(pod.addr.Port())}); err != nil {
		return fmt.Errorf("binding %s: %w", pod.addr, err)
	}
	if err := unix.Listen(fd, 65535); err != nil {
		return fmt.Errorf("listening on %s: %w", pod.addr, err)
	}
	pod.listener, p.listening[fd] = fd, i
	return p.watch(fd)
}

// leave closes all that a process would have had.
func (p *failoverPeer) leave(i int) {
	pod := p.pods[i]
	if pod.listener < 0 {
		return
	}
	delete(p.listening, pod.listener)
	rawClose(pod.listener)
	pod.listener = -1
	for fd, of := range p.conns {
		if of == i {
			p.close(fd)
		}
	}
}

func (p *failoverPeer) accept(i int) {
	pod := p.pods[i]
	for range 64 {
		conn, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(pod.listener), 0, 0, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
		if errno != 0 {
			return
		}
		fd := int(conn)
		if pod.resets {
			unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			rawClose(fd)
			continue
		}
		p.conns[fd] = i
		if p.watch(fd) != nil {
			p.close(fd)
		} else if p.greets {
			rawWrite(fd, p.greeting[:])
		}
	}
}

// echo serves one connection and reports that it goes on.
func (p *failoverPeer) echo(fd int) bool {
	n, errno := rawRead(fd, p.buf)
	if errno == unix.EAGAIN {
		return true
	}
	if errno != 0 || n == 0 {
		return false
	}
	m, errno := rawWrite(fd, p.buf[:n])
	return errno == 0 && m == n
}

func (p *failoverPeer) close(fd int) {
	delete(p.conns, fd)
	rawClose(fd)
}
