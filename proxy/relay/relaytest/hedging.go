package relaytest

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"redial/proxy/relay"
)

const soon = 10 * time.Millisecond

// A silent backend does not hold up its client, and is not said to be dead for that.
func testHedge(t *testing.T, new New) {
	silent, _ := silentBackend(t)
	b := balance(silent, backend(t, echo))
	b.hedge = soon
	_, l := start(t, new, relay.Config{}, b)
	roundTrip(t, dial(t, l), "by the second")
	assert.Empty(t, b.failures())
	assert.Equal(t, []netip.AddrPort{silent}, heard(b, &b.overdue), "so that others are spared")
	s := l.Stats()
	assert.EqualValues(t, 1, s.Hedges)
	assert.EqualValues(t, 1, s.Retried)
	assert.Zero(t, s.Retries)
}

// The balancer hears of it when the loser stays silent, although nobody waits for it any more.
func testHedgeFindsTheDead(t *testing.T, new New) {
	silent, _ := silentBackend(t)
	b := balance(silent, backend(t, echo))
	b.hedge = soon
	engine, l := start(t, new, relay.Config{TryTimeout: time.Hour}, b)
	conn := dial(t, l)
	roundTrip(t, conn, "by the second")
	conn.Close()
	engine.Advance(59 * time.Minute)
	assert.Empty(t, b.failures())
	engine.Advance(time.Minute)
	assert.Equal(t, []netip.AddrPort{silent}, b.failures())
}

func testHedgeLost(t *testing.T, new New) {
	t.Parallel()
	first, wake := silentBackend(t)
	second, _ := silentBackend(t)
	b := balance(first, second)
	b.hedge = soon
	_, l := start(t, new, relay.Config{}, b)
	dial(t, l)
	eventually(t, func() bool { return l.Stats().Hedges == 1 }, "the second dial")
	wake() // it answers when the SYN is sent again, after a second
	eventually(t, func() bool { return l.Stats().Connected == 1 }, "the connection")
	b.mu.Lock()
	assert.Equal(t, 1, b.active[first])
	b.mu.Unlock()
	assert.Empty(t, b.failures())
	assert.Zero(t, l.Stats().Retried)
}

// That the loser answers after all counts for its backend.
func testHedgeAnsweredLate(t *testing.T, new New) {
	t.Parallel()
	silent, wake := silentBackend(t)
	good := backend(t, echo)
	b := balance(silent, good)
	b.hedge = soon
	_, l := start(t, new, relay.Config{TryTimeout: time.Hour, DialTimeout: time.Hour}, b)
	roundTrip(t, dial(t, l), "by the second")
	wake() // it answers when the SYN is sent again, after a second
	eventually(t, func() bool { return len(heard(b, &b.answered)) == 2 }, "the answer")
	assert.Equal(t, []netip.AddrPort{good, silent}, heard(b, &b.answered))
	b.mu.Lock()
	assert.Zero(t, b.active[silent], "nobody has that connection")
	b.mu.Unlock()
	assert.EqualValues(t, 1, l.Stats().Connected)
}

// Two silent ones cost no more than their delays, if there are others that are not known to be.
func testHedgeBothSilent(t *testing.T, new New) {
	first, _ := silentBackend(t)
	second, _ := silentBackend(t)
	b := balance(first, second, backend(t, echo))
	b.hedge, b.trusts = soon, true
	_, l := start(t, new, relay.Config{TryTimeout: time.Hour, DialTimeout: time.Hour}, b)
	conn := dial(t, l)
	roundTrip(t, conn, "by the third")
	assert.Empty(t, b.failures())
	assert.EqualValues(t, 2, l.Stats().Hedges)
	assert.Contains(t, heard(b, &b.overdue), first)
	assert.Contains(t, heard(b, &b.overdue), second)
	conn.Close()
	eventually(t, func() bool { return l.Stats().Active == 0 }, "the end")
}

func testHedgesTwoAtMost(t *testing.T, new New) {
	var all []netip.AddrPort
	for range 4 {
		silent, _ := silentBackend(t)
		all = append(all, silent)
	}
	b := balance(all...)
	b.hedge = soon
	_, l := start(t, new, relay.Config{TryTimeout: 100 * time.Millisecond}, b)
	conn := dial(t, l)
	eventually(t, func() bool { return len(b.failures()) >= 4 }, "the first round")
	assert.Equal(t, all, b.failures()[:4], "each for its time")
	assert.Equal(t, all, b.picked()[:4])
	conn.SetLinger(0)
	conn.Close()
	eventually(t, func() bool { return l.Stats().Active == 0 }, "the search to be given up")
	assert.Equal(t, 2, b.mostOpen)
}

func testHedgeOff(t *testing.T, new New) {
	silent, _ := silentBackend(t)
	b := balance(silent, backend(t, echo))
	b.hedge = soon
	engine, l := start(t, new, relay.Config{TryTimeout: time.Hour}, b)
	l.Configure(relay.Settings{Hedge: -1})
	conn := dial(t, l)
	eventually(t, func() bool { return len(b.picked()) == 1 }, "the dial")
	engine.Advance(time.Hour)
	roundTrip(t, conn, "after the first was given up")
	assert.Equal(t, []netip.AddrPort{silent}, b.failures())
	assert.Zero(t, l.Stats().Hedges)
	assert.Equal(t, 1, b.mostOpen)

	other := balance(b.backends...)
	_, l = start(t, new, relay.Config{}, other)
	l.Configure(relay.Settings{Hedge: soon})
	roundTrip(t, dial(t, l), "sooner than the balancer says")
	assert.EqualValues(t, 1, l.Stats().Hedges)
}

func testHedgeAndClientLeaves(t *testing.T, new New) {
	first, _ := silentBackend(t)
	second, _ := silentBackend(t)
	b := balance(first, second)
	b.hedge = soon
	_, l := start(t, new, relay.Config{}, b)
	before := openFDs(t)
	conn := dial(t, l)
	eventually(t, func() bool { return openFDs(t) == before+4 }, "the client's, the relay's three sockets")
	conn.SetLinger(0)
	conn.Close()
	eventually(t, func() bool { return openFDs(t) == before }, "them to be closed")
	assert.EqualValues(t, 1, l.Stats().Hedges)
	assert.EqualValues(t, 1, l.Stats().Abandoned)
	assert.Empty(t, b.failures())
}

// The next one takes the place of a second that refuses.
func testHedgeRefused(t *testing.T, new New) {
	silent, _ := silentBackend(t)
	dead := refused(t)
	b := balance(silent, dead, backend(t, echo))
	b.hedge = soon
	_, l := start(t, new, relay.Config{}, b)
	roundTrip(t, dial(t, l), "by the third")
	assert.Equal(t, []netip.AddrPort{dead}, b.failures())
	assert.EqualValues(t, 2, l.Stats().Hedges)
}

// When all have refused but one, the search is for that one. It answers late.
func testFirstRefusedBesideHedge(t *testing.T, new New) {
	t.Parallel()
	silent, wake := silentBackend(t)
	b := balance(silent, refused(t), refused(t))
	b.hedge = soon
	_, l := start(t, new, relay.Config{}, b)
	dial(t, l)
	eventually(t, func() bool { return len(b.failures()) == 2 }, "the refusals")
	wake()
	eventually(t, func() bool { return l.Stats().Connected == 1 }, "the connection")
	assert.Len(t, b.picked(), 3)
}

// A second socket is not worth a client's place. Without, it goes on as if there were no hedging.
func testHedgeNeedsADescriptor(t *testing.T, new New) {
	silent, _ := silentBackend(t)
	b := balance(silent, backend(t, echo))
	b.hedge = soon
	engine, l := start(t, new, relay.Config{MaxFDs: 5, TryTimeout: time.Hour}, b)
	for i := range 3 {
		conn := dial(t, l)
		eventually(t, func() bool { return len(b.picked()) == 2*i+1 }, "the dial")
		engine.Advance(time.Hour)
		roundTrip(t, conn, "after the first was given up")
		conn.Close()
		assert.Equal(t, i+1, len(b.failures()))
		b.mu.Lock()
		b.next = 0
		b.mu.Unlock()
	}
	assert.Zero(t, l.Stats().Hedges)
}

func testMaxRetries(t *testing.T, new New) {
	t.Parallel()
	b := balance(refused(t), refused(t), refused(t), refused(t), refused(t))
	_, l := start(t, new, relay.Config{}, b)
	for _, c := range []struct{ most, dials int }{{-1, 1}, {1, 2}, {3, 4}, {0, 5}, {9, 5}} {
		l.Configure(relay.Settings{MaxRetries: c.most})
		before := len(b.picked())
		expectReset(t, l)
		assert.Equal(t, c.dials, len(b.picked())-before, "MaxRetries %d", c.most)
	}

	// The only dial that there may be has all the time there is.
	silent, wake := silentBackend(t)
	b = balance(silent, backend(t, echo))
	b.hedge = soon
	_, l = start(t, new, relay.Config{TryTimeout: soon}, b)
	l.Configure(relay.Settings{MaxRetries: -1})
	dial(t, l)
	eventually(t, func() bool { return len(heard(b, &b.overdue)) >= 3 }, "others to be spared as long as it goes on")
	wake() // it answers when the SYN is sent again, after a second
	eventually(t, func() bool { return l.Stats().Connected == 1 }, "the connection")
	assert.Len(t, b.picked(), 1)
	assert.Zero(t, l.Stats().Hedges)
}

// The balancer has the last word, but not about a first dial.
func testRetryBudget(t *testing.T, new New) {
	b := balance(refused(t), backend(t, earlyEnds["FIN"].serve), backend(t, echo))
	b.refuses = true
	_, l := start(t, new, relay.Config{}, b)
	expectReset(t, l)
	assert.ErrorIs(t, endSeen(l), earlyEnds["FIN"].seen)
	roundTrip(t, dial(t, l), "a first dial")
	assert.Len(t, b.picked(), 3)
	assert.Len(t, b.failures(), 2)

	b = balance(refused(t), refused(t), backend(t, echo))
	b.refuses, b.works = true, true
	_, l = start(t, new, relay.Config{}, b)
	roundTrip(t, dial(t, l), "begun while something worked")
	l.Configure(relay.Settings{MaxRetries: -1})
	expectReset(t, l)
}

// Two dials that nothing may take the place of have all the time there is, both of them.
func testMaxRetriesAndBothSilent(t *testing.T, new New) {
	t.Parallel()
	first, wake := silentBackend(t)
	second, _ := silentBackend(t)
	b := balance(first, second, backend(t, echo))
	b.hedge = soon
	engine, l := start(t, new, relay.Config{TryTimeout: time.Hour}, b)
	l.Configure(relay.Settings{MaxRetries: 1})
	dial(t, l)
	eventually(t, func() bool { return l.Stats().Hedges == 1 }, "the second dial")
	for range 3 {
		before := len(heard(b, &b.overdue))
		engine.Advance(time.Hour)
		eventually(t, func() bool {
			news := heard(b, &b.overdue)[before:]
			return slices.Contains(news, first) && slices.Contains(news, second)
		}, "others to be spared as long as they go on")
	}
	wake() // it answers when the SYN is sent again, after a second
	eventually(t, func() bool { return l.Stats().Connected == 1 }, "the connection")
	assert.Equal(t, []netip.AddrPort{first, second}, b.picked())
	b.mu.Lock()
	assert.Equal(t, 1, b.active[first])
	b.mu.Unlock()
}
