package main

import (
	"encoding/binary"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dataClient is one connection, or one after the other.
type dataClient struct {
	slot   int32
	fd     int
	ask    byte
	once   bool // it closes after one answer, and connects again
	idle   bool // it asks once and stays
	stays  bool // it was answered
	ending bool // its upload has ended, the verdict has not come yet

	sent    bool
	request [requestSize]byte
	reply   [requestSize + 1]byte // with room for what is too much
	got     int
	stream  stream
	written uint64 // bytes of an upload, the request included
	since   time.Time
	next    time.Time // when a paced client connects again; zero: it is connected
}

func (l *dataLoad) connect(c *dataClient) error {
	fd, err := tcpSocket()
	if err != nil {
		return err
	}
	c.fd, c.sent, c.since, c.next = fd, false, time.Now(), time.Time{}
	l.prepare(c)
	remote := &l.remotes[l.sample.Begun%len(l.remotes)]
	l.sample.Begun++
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(remote)), unix.SizeofSockaddrInet4)
	if errno != 0 && errno != unix.EINPROGRESS {
		return fmt.Errorf("connecting: %w", errno)
	}
	interest := uint32(unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET)
	if c.ask != askEcho { // streams are served in turn with the others
		interest = unix.EPOLLIN | unix.EPOLLOUT
	}
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: interest, Fd: c.slot})
}

// prepare makes the next request.
func (l *dataLoad) prepare(c *dataClient) {
	l.next++
	c.request, c.got, c.stream, c.written = dataRequest(c.ask, l.next), 0, streamOf(l.next), 0
}

// again starts a client anew, after what it has brought has been counted.
func (l *dataLoad) again(c *dataClient) error {
	rawClose(c.fd)
	switch {
	case c.idle:
		l.gone++
		if c.stays {
			l.sample.Idle--
		}
		return nil // or a proxy without room would be asked for it for ever
	case c.ending:
		l.ending--
		return nil
	case c.once && l.Pace > 0:
		c.next = c.since.Add(paceEvery)
		return nil
	}
	return l.connect(c)
}

func (l *dataLoad) fail(c *dataClient) error {
	l.sample.Failed++
	return l.again(c)
}

func (l *dataLoad) wrong(c *dataClient) error {
	l.sample.Wrong++
	return l.again(c)
}

// serve goes on with one client.
func (l *dataLoad) serve(c *dataClient, events uint32) error {
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 && !c.ending {
		return l.fail(c)
	}
	if !c.sent && events&unix.EPOLLOUT != 0 {
		c.sent = true
		if _, errno := rawWrite(c.fd, c.request[:]); errno != 0 {
			return l.fail(c)
		}
		c.written = requestSize
		if c.ask == askGive {
			interest := uint32(unix.EPOLLIN)
			if l.Pace > 0 {
				interest = 0
			}
			return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_MOD, c.fd, &unix.EpollEvent{Events: interest, Fd: c.slot})
		}
	}
	switch {
	case c.ask == askTake && events&unix.EPOLLIN != 0:
		return l.verdict(c)
	case c.ask == askTake:
		return l.upload(c)
	case events&unix.EPOLLIN == 0:
		return nil
	case c.ask == askGive:
		_, err := l.download(c, l.buf)
		return err
	}
	return l.echo(c)
}

func (l *dataLoad) upload(c *dataClient) error {
	n, errno := rawWrite(c.fd, c.stream.next(bulkSize))
	if errno == unix.EAGAIN {
		return nil
	}
	if errno != 0 {
		return l.fail(c)
	}
	c.stream.skip(n)
	c.written += uint64(n)
	l.sample.Bytes += int64(n)
	return nil
}

// verdict reads what the backend says of an upload, which is nothing before its end.
func (l *dataLoad) verdict(c *dataClient) error {
	n, errno := rawRead(c.fd, c.reply[c.got:])
	if errno == unix.EAGAIN {
		return nil
	}
	if errno != 0 || n == 0 {
		return l.fail(c)
	}
	if c.got += n; c.got < 8 {
		return nil
	}
	if !c.ending || c.got > 8 || binary.NativeEndian.Uint64(c.reply[:]) != c.written {
		return l.wrong(c)
	}
	return l.again(c)
}

// download returns how many bytes there were.
func (l *dataLoad) download(c *dataClient, b []byte) (int, error) {
	n, errno := rawRead(c.fd, b)
	if errno == unix.EAGAIN {
		return 0, nil
	}
	if errno != 0 || n == 0 {
		return 0, l.fail(c)
	}
	if !c.stream.take(b[:n]) {
		return n, l.wrong(c)
	}
	l.sample.Bytes += int64(n)
	return n, nil
}

func (l *dataLoad) echo(c *dataClient) error {
	n, errno := rawRead(c.fd, c.reply[min(c.got, requestSize):])
	if errno == unix.EAGAIN {
		return nil
	}
	if errno != 0 || n == 0 {
		return l.fail(c)
	}
	if c.got += n; c.got < requestSize {
		return nil
	}
	if c.got > requestSize || c.request != [requestSize]byte(c.reply[:]) {
		return l.wrong(c)
	}
	if c.idle {
		c.stays = true
		l.sample.Idle++
		return nil
	}
	now := time.Now()
	if len(l.took) < cap(l.took) {
		l.took = append(l.took, uint32(min(now.Sub(c.since), time.Duration(^uint32(0)))))
	}
	if c.once {
		return l.again(c)
	}
	l.prepare(c)
	c.since = now
	if _, errno := rawWrite(c.fd, c.request[:]); errno != 0 {
		return l.fail(c)
	}
	return nil
}
