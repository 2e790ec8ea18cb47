package main

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
)

// What the first byte of a connection asks the backend for.
const (
	askEcho = 'e' // bytes, that one included, come back
	askTake = 't' // a stream is taken; when it ends, the number of bytes comes back, or wrongBytes
	askGive = 'g' // a stream comes for as long as the client takes it
)

// wrongBytes is said of a stream that was not as it should be.
const wrongBytes = ^uint64(0)

// dataRequest begins every connection: it is unlike that of any other.
func dataRequest(ask byte, number uint64) (data [requestSize]byte) {
	fillRequest(&data, number<<8|uint64(ask))
	return data
}

// parseDataRequest is the reverse. It is not ok if any byte is wrong.
func parseDataRequest(data [requestSize]byte) (ask byte, number uint64, ok bool) {
	id := binary.NativeEndian.Uint64(data[:])
	return byte(id), id >> 8, data == dataRequest(byte(id), id>>8)
}

const (
	bulkSize = 256 << 10 // bytes that are read or written at once
	// streamPeriod is after how many bytes a stream repeats itself: a prime, so that no block of a usual size, left out,
	// doubled or put elsewhere, meets with the same bytes; and few, so that to compare does not cost a cache.
	streamPeriod = 16381
)

var streamBytes = func() []byte {
	b := make([]byte, streamPeriod+bulkSize)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		if i < streamPeriod {
			b[i] = byte(random.Uint32())
		} else {
			b[i] = b[i-streamPeriod]
		}
	}
	return b
}()

// stream is a place in the bytes of a stream, of which each connection's begin somewhere else.
type stream int

func streamOf(number uint64) stream { return stream(number * 7919 % streamPeriod) }

// next are the bytes that follow.
func (s stream) next(n int) []byte { return streamBytes[s : int(s)+n] }

func (s *stream) skip(n int) { *s = (*s + stream(n)) % streamPeriod }

// take reports that b is what follows, and skips it.
func (s *stream) take(b []byte) bool {
	ok := bytes.Equal(b, s.next(len(b)))
	s.skip(len(b))
	return ok
}
