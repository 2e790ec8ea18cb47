package main

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// failures are clients without their answer.
type failures struct {
	Refused  int `json:"refused"`  // or told that the host cannot be reached
	Cut      int `json:"cut"`      // reset or closed before the answer
	TimedOut int `json:"timedOut"` // no answer within the patience
	Wrong    int `json:"wrong"`    // another answer
}

func (f failures) add(g failures) failures {
	return failures{f.Refused + g.Refused, f.Cut + g.Cut, f.TimedOut + g.TimedOut, f.Wrong + g.Wrong}
}

func (f failures) sum() int { return f.Refused + f.Cut + f.TimedOut + f.Wrong }

func (f failures) String() string {
	var s []string
	for _, c := range []struct {
		n    int
		what string
	}{{f.Refused, "refused"}, {f.Cut, "cut"}, {f.TimedOut, "timed out"}, {f.Wrong, "WRONG"}} {
		if c.n > 0 {
			s = append(s, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	return strings.Join(s, ", ")
}

// failoverClient is one connection, which asks once.
type failoverClient struct {
	fd        int
	id        uint64
	due       time.Time
	connected bool
	greeted   bool
	over      bool
	got       int
	reply     [requestSize + 1]byte // room to see that an answer is too long
}

// serve goes on with one client.
func (l *failoverLoad) serve(c *failoverClient, events uint32) {
	if !c.connected {
		if events&unix.EPOLLERR != 0 {
			errno, _ := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
			l.fail(c, unix.Errno(errno))
			return
		}
		if events&unix.EPOLLOUT == 0 {
			return
		}
		c.connected = true
		if !l.GreetedByPeers && !l.request(c) {
			return
		}
	}
	for {
		n, errno := rawRead(c.fd, c.reply[c.got:])
		switch {
		case errno == unix.EAGAIN:
			return
		case errno == unix.EINTR:
			continue
		case errno != 0 || n == 0:
			l.fail(c, unix.ECONNRESET)
			return
		}
		if c.got += n; c.got < requestSize {
			continue
		}
		if c.got > requestSize {
			l.end(c, &l.sample.Failures.Wrong)
			return
		}
		reply := [requestSize]byte(c.reply[:requestSize])
		if l.GreetedByPeers && !c.greeted {
			if reply != l.greeting {
				l.end(c, &l.sample.Failures.Wrong)
				return
			}
			if c.greeted, c.got = true, 0; !l.request(c) {
				return
			}
			continue
		}
		if want := requestOf(c.id); reply != want {
			l.end(c, &l.sample.Failures.Wrong)
			return
		}
		l.took = append(l.took, time.Since(c.due))
		l.end(c, nil)
		return
	}
}

func requestOf(id uint64) (data [requestSize]byte) {
	fillRequest(&data, id)
	return data
}

// request asks, and reports that it could.
func (l *failoverLoad) request(c *failoverClient) bool {
	data := requestOf(c.id)
	if n, errno := rawWrite(c.fd, data[:]); errno != 0 || n != requestSize {
		l.fail(c, unix.ECONNRESET)
		return false
	}
	return true
}

func (l *failoverLoad) fail(c *failoverClient, errno unix.Errno) {
	f := &l.sample.Failures
	switch {
	case errno == unix.ETIMEDOUT:
		l.end(c, &f.TimedOut)
	case errno == unix.ECONNREFUSED || errno == unix.EHOSTUNREACH || errno == unix.ENETUNREACH:
		l.end(c, &f.Refused)
	default:
		l.end(c, &f.Cut)
	}
}

func (l *failoverLoad) end(c *failoverClient, as *int) {
	if as != nil {
		*as++
	}
	rawClose(c.fd)
	c.over = true
	l.open--
}
