package balancer

import "sync/atomic"

// load counts what a backend is charged with: picks in flight, from Pick to Report, in the upper half of the word, and
// connections, from Report to Release, in the lower. One word, so that a limit holds exactly and a choice by load can be
// made conditional on the load it was made by.
//
// It outlives the incarnation. A pod that turns unready and ready again still holds its connections, and those are
// released by address; with a count of its own, the second incarnation would be charged for them.
type load struct {
	word atomic.Uint64
	// lapses is the strikes for connections that led nowhere since one that was released without a complaint; spoilt
	// how many of the former are yet to be released.
	lapses, spoilt atomic.Int32
}

// reading is a load at one moment.
type reading uint64

const onePick = reading(1) << 32

func (n reading) flying() uint64 { return uint64(n >> 32) }
func (n reading) active() uint64 { return uint64(n & (onePick - 1)) }
func (n reading) total() uint64  { return n.flying() + n.active() }

func (l *load) read() reading { return reading(l.word.Load()) }

// free reports whether there is room under limit; 0 is no limit.
func (l *load) free(limit int) bool { return limit == 0 || l.read().total() < uint64(limit) }

// reserve counts one more pick, unless limit is reached.
func (l *load) reserve(limit int) bool {
	if limit == 0 {
		l.word.Add(uint64(onePick))
		return true
	}
	for {
		n := l.read()
		if n.total() >= uint64(limit) {
			return false
		}
		if l.swap(n, n+onePick) {
			return true
		}
	}
}

// reserveIf is reserve, provided that the load is still n.
func (l *load) reserveIf(n reading, limit int) bool {
	return (limit == 0 || n.total() < uint64(limit)) && l.swap(n, n+onePick)
}

// connect turns a pick in flight into a connection. Here and below, what was never counted, because the backend was gone
// at the time, is not subtracted either.
func (l *load) connect() {
	for {
		n := l.read()
		next := n + 1
		if n.flying() > 0 {
			next -= onePick
		}
		if l.swap(n, next) {
			return
		}
	}
}

// abandon ends a pick that came to nothing.
func (l *load) abandon() {
	for n := l.read(); n.flying() > 0; n = l.read() {
		if l.swap(n, n-onePick) {
			return
		}
	}
}

// release ends a connection. Unless it led nowhere, those before it that did are forgiven.
func (l *load) release() {
	spoilt := l.spoilt.Load()
	for spoilt > 0 && !l.spoilt.CompareAndSwap(spoilt, spoilt-1) {
		spoilt = l.spoilt.Load()
	}
	if spoilt == 0 && l.lapses.Load() != 0 {
		l.lapses.Store(0)
	}
	for n := l.read(); n.active() > 0; n = l.read() {
		if l.swap(n, n-1) {
			return
		}
	}
}

func (l *load) swap(from, to reading) bool { return l.word.CompareAndSwap(uint64(from), uint64(to)) }
