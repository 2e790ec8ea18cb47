package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// udpRequest is one request and what becomes of it.
type udpRequest struct {
	fd   int
	id   uint64
	data [requestSize]byte
	sent time.Time
}

const requestSize = 64

// write makes the request's content, which is unlike that of any other and whose every byte depends on the number.
func (r *udpRequest) write(id uint64) {
	r.id = id
	fillRequest(&r.data, id)
}

func fillRequest(data *[requestSize]byte, id uint64) {
	words := (*[requestSize / 8]uint64)(unsafe.Pointer(data))
	for i := range words {
		words[i] = (id + 1) * (0x9e3779b97f4a7c15 + 2*uint64(i))
	}
	words[0] = id
}

// verdict is what a datagram is to the request that waits.
type verdict int

const (
	answered verdict = iota
	late             // the answer to an earlier request, which counts as lost already
	wrong
)

func (r *udpRequest) judge(reply []byte) verdict {
	if len(reply) != requestSize {
		return wrong
	}
	if [requestSize]byte(reply) == r.data {
		return answered
	}
	var earlier [requestSize]byte
	id := *(*uint64)(unsafe.Pointer(&reply[0]))
	fillRequest(&earlier, id)
	if id < r.id && [requestSize]byte(reply) == earlier {
		return late
	}
	return wrong
}

// udpFaults is what must not happen.
type udpFaults struct {
	Lost    int `json:"lost"`    // not answered within the patience
	Wrong   int `json:"wrong"`   // answered with something else
	Refused int `json:"refused"` // the kernel says that nobody is there
}

func (f udpFaults) add(g udpFaults) udpFaults {
	return udpFaults{Lost: f.Lost + g.Lost, Wrong: f.Wrong + g.Wrong, Refused: f.Refused + g.Refused}
}

func (f udpFaults) any() bool { return f != udpFaults{} }

func (f udpFaults) String() string {
	var s []string
	for _, c := range []struct {
		n    int
		what string
	}{{f.Lost, "lost"}, {f.Wrong, "wrong"}, {f.Refused, "refused"}} {
		if c.n > 0 {
			s = append(s, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	if len(s) == 0 {
		return "none"
	}
	return "FAILED: " + strings.Join(s, ", ")
}

// udpPatience is how long a client waits for its answer.
const udpPatience = time.Second

// exchange makes one request on a new socket.
func exchange(local, remote netip.AddrPort, id uint64) (f udpFaults, err error) {
	r := udpRequest{}
	if r.fd, err = udpSocket(local, remote); err != nil {
		return f, err
	}
	defer unix.Close(r.fd)
	r.write(id)
	if errno := rawSend(r.fd, r.data[:]); errno != 0 {
		return f, errno
	}
	var reply [2 * requestSize]byte
	for deadline := time.Now().Add(udpPatience); ; {
		n, errno := rawReceive(r.fd, reply[:])
		switch {
		case errno == unix.EINTR && time.Now().Before(deadline):
			continue
		case errno == unix.ECONNREFUSED:
			f.Refused++
		case errno != 0:
			f.Lost++
		case r.judge(reply[:n]) != answered:
			f.Wrong++
		}
		return f, nil
	}
}

// probeUDP reports whether a new client is answered.
func probeUDP(address string) error {
	remote, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	f, err := exchange(netip.AddrPort{}, remote, uint64(time.Now().UnixNano()))
	if err == nil && f.any() {
		err = errors.New(f.String())
	}
	return err
}
