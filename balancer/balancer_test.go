package balancer

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	errRefused = errors.New("connection refused")
	errGivenUp = context.Canceled
	errSilent  = context.DeadlineExceeded
)

func status(t *testing.T, b *Balancer, octet byte) BackendStatus {
	t.Helper()
	for _, s := range b.Backends() {
		if s.Addr == addr(octet) {
			return s
		}
	}
	t.Fatalf("no backend %v", addr(octet))
	return BackendStatus{}
}

func TestBackendsTellWhatHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startingAt(0, 2, 1)
		picks(b, 3)
		b.Report(anyone, addr(1), 0, nil)
		b.Report(anyone, addr(1), 0, nil)
		b.Report(anyone, addr(2), 0, errRefused)
		failedAt := time.Now()
		time.Sleep(time.Second)
		b.Release(addr(1))
		require.Equal(t, []BackendStatus{
			{Addr: addr(1), Weight: 1, Active: 1, Picked: 2, Connected: 2, HedgeDelay: maxHedge},
			{Addr: addr(2), Weight: 1, Picked: 1, Failed: 1, LastError: "connection refused", LastErrorTime: failedAt, HedgeDelay: maxHedge},
		}, b.Backends())
	})
}

func TestCountersSurviveUpdates(t *testing.T) {
	b := startingAt(0, 1, 2)
	picks(b, 2)
	b.Report(anyone, addr(1), 0, nil)
	b.Update(Config{Backends: alike(1, 3), Affinity: time.Minute})
	b.Update(Config{Backends: alike(0, 1)})
	require.Equal(t, BackendStatus{Addr: addr(1), Weight: 1, Active: 1, Picked: 1, Connected: 1, HedgeDelay: maxHedge}, status(t, b, 1))
}

func TestReturningBackendStartsAnew(t *testing.T) {
	b := startingAt(0, 1, 2)
	picks(b, 2)
	b.Report(anyone, addr(1), 0, errRefused)
	b.Update(Config{Backends: alike(2)})
	b.Update(Config{Backends: alike(1, 2)})
	require.Equal(t, BackendStatus{Addr: addr(1), Weight: 1, HedgeDelay: maxHedge}, status(t, b, 1))
}

// A pod that is unready for a while keeps its connections. They must neither vanish from the count nor, when they end,
// be taken from connections made after the return.
func TestActiveConnectionsOutliveAnAbsence(t *testing.T) {
	b := startingAt(0, 1, 2)
	b.Report(anyone, addr(1), 0, nil)
	b.Report(anyone, addr(1), 0, nil)
	b.Update(Config{Backends: alike(2)})
	b.Update(Config{Backends: alike(2, 3)})
	b.Release(addr(1))                // ends while the backend is gone
	b.Report(anyone, addr(1), 0, nil) // dialled before it left, connected after
	b.Update(Config{Backends: alike(1, 2, 3)})
	b.Report(anyone, addr(1), 0, nil)
	require.EqualValues(t, 3, status(t, b, 1).Active)
	require.EqualValues(t, 1, status(t, b, 1).Connected)
	for want := int64(2); want >= 0; want-- {
		b.Release(addr(1))
		require.Equal(t, want, status(t, b, 1).Active)
	}
}

func TestBackendsMayLeaveInAnyOrder(t *testing.T) {
	b := startingAt(0, 1, 2, 3, 4)
	for _, o := range []byte{1, 3, 2} {
		b.Report(anyone, addr(o), 0, nil)
	}
	b.Update(Config{Backends: alike(2, 3, 4)})
	b.Update(Config{Backends: alike(2, 4)})
	b.Update(Config{Backends: alike(4)})
	b.Update(Config{Backends: alike(1, 2, 3, 4)})
	for _, o := range []byte{1, 2, 3} {
		require.EqualValues(t, 1, status(t, b, o).Active, o)
	}
}

func TestGoneBackendsAreForgottenWithTheirLastConnection(t *testing.T) {
	b := startingAt(0, 1, 2)
	b.Report(anyone, addr(1), 0, nil)
	b.Update(Config{Backends: alike(2)})
	require.Len(t, b.view.Load().left, 1)
	b.Release(addr(1))
	b.Update(Config{Backends: alike(2, 3)})
	require.Empty(t, b.view.Load().left)
}

func TestActiveNeverUnderflows(t *testing.T) {
	b := startingAt(0, 1)
	b.Release(addr(1))
	b.Release(addr(9))
	require.Zero(t, status(t, b, 1).Active)

	b.Update(Config{})
	b.Report(anyone, addr(1), 0, nil) // unknown by now: ignored
	b.Report(anyone, addr(1), 0, errRefused)
	b.Update(Config{Backends: alike(1)})
	b.Release(addr(1))
	b.Report(anyone, addr(1), 0, nil)
	require.EqualValues(t, 1, status(t, b, 1).Active)
}

func TestPickDoesNotAllocate(t *testing.T) {
	plain := startingAt(0, 1, 2, 3)
	sticky := startingAt(0)
	sticky.Update(Config{Backends: alike(1, 2, 3), Affinity: time.Hour})
	sticky.Pick(anyone, nil)
	tried := addrs(1)
	for name, pick := range map[string]func(){
		"in turn":     func() { plain.Pick(anyone, nil) },
		"retry":       func() { plain.Pick(anyone, tried) },
		"none left":   func() { plain.Pick(netip.Addr{}, addrsAll) },
		"pinned":      func() { sticky.Pick(anyone, nil) },
		"report":      func() { plain.Report(anyone, tried[0], 0, nil) },
		"report, pin": func() { sticky.Report(anyone, tried[0], 0, nil) },
		"release":     func() { plain.Release(tried[0]) },
	} {
		t.Run(name, func(t *testing.T) {
			require.Zero(t, testing.AllocsPerRun(1000, pick))
		})
	}
}

var addrsAll = addrs(1, 2, 3)
