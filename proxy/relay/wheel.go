package relay

import (
	"math/bits"
	"time"
)

// tick is the wheel's unit. Timers fire up to one late.
const tick = time.Millisecond

const (
	wheelBits   = 6
	wheelSlots  = 1 << wheelBits
	wheelLevels = 4 // reaches 64^4 ms, four hours and a half; what is due later is looked at again then
)

// alarmed is what a timer is for.
type alarmed interface{ alarm() }

// timer is one alarm of its owner. The zero value is not set; it must not be copied while it is set.
type timer struct {
	owner      alarmed
	due        int64 // in ticks
	prev, next *timer
	level, at  uint8 // the slot that it is in
	set        bool
}

// wheel holds a loop's timers, in slots by the time that they are due: level 0 has a slot for each of the next 64 ticks,
// level 1 one for each 64 ticks, and so on. A timer comes down a level when its slot's time has come. Setting and
// unsetting costs the same whatever the number of timers, as it has to when every connection sets one that hardly ever
// fires. The zero value is ready.
type wheel struct {
	now   int64 // in ticks; everything due earlier has fired
	used  [wheelLevels]uint64
	slots [wheelLevels][wheelSlots]*timer
}

// set makes t fire at a time, instead of when it was due before.
func (w *wheel) set(t *timer, at time.Duration) {
	due := int64((at + tick - 1) / tick)
	if t.set && t.due == due {
		return
	}
	w.unset(t)
	t.due = due
	w.insert(t)
}

func (w *wheel) insert(t *timer) {
	due := max(t.due, w.now)
	level := 0
	for level < wheelLevels-1 && due>>(level*wheelBits)-w.now>>(level*wheelBits) >= wheelSlots {
		level++
	}
	shift := level * wheelBits
	slot := min(due>>shift, w.now>>shift+wheelSlots-1) % wheelSlots
	head := &w.slots[level][slot]
	t.level, t.at, t.set = uint8(level), uint8(slot), true
	t.prev, t.next = nil, *head
	if t.next != nil {
		t.next.prev = t
	}
	*head = t
	w.used[level] |= 1 << slot
}

// unset makes t not fire.
func (w *wheel) unset(t *timer) {
	if !t.set {
		return
	}
	if t.next != nil {
		t.next.prev = t.prev
	}
	if t.prev != nil {
		t.prev.next = t.next
	} else if w.slots[t.level][t.at] = t.next; t.next == nil {
		w.used[t.level] &^= 1 << t.at
	}
	t.prev, t.next, t.set = nil, nil, false
}

// next returns when the first slot's time comes, and its level; false if no timer is set.
func (w *wheel) next() (at int64, level int, ok bool) {
	for l := range wheelLevels {
		if w.used[l] == 0 {
			continue
		}
		current := w.now >> (l * wheelBits)
		ahead := bits.TrailingZeros64(bits.RotateLeft64(w.used[l], -int(current%wheelSlots)))
		if t := (current + int64(ahead)) << (l * wheelBits); !ok || t < at {
			at, level, ok = t, l, true
		}
	}
	return at, level, ok
}

// wake returns when expired should be asked again; 0 if no timer is set.
func (w *wheel) wake() time.Duration {
	at, _, ok := w.next()
	if !ok {
		return 0
	}
	return max(time.Duration(at)*tick, 1)
}

// expired returns a timer that is due by now, no longer set, or nil if there is none left.
func (w *wheel) expired(now time.Duration) *timer {
	current := int64(now / tick)
	for {
		at, level, ok := w.next()
		if !ok || at > current {
			w.now = max(w.now, current)
			return nil
		}
		w.now = max(w.now, at)
		t := w.slots[level][at>>(level*wheelBits)%wheelSlots]
		w.unset(t)
		if t.due <= w.now {
			return t
		}
		w.insert(t)
	}
}
