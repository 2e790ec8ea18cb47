package balancer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLoadCountsWhatItWasTold(t *testing.T) {
	var l load
	require.True(t, l.reserve(2))
	seen := l.read()
	require.True(t, l.reserveIf(seen, 2))
	require.False(t, l.reserveIf(seen, 3), "no longer the load that was seen")
	require.False(t, l.free(2))
	require.False(t, l.reserve(2), "the limit holds by itself, whoever looked before")
	require.False(t, l.reserveIf(l.read(), 2))
	require.True(t, l.reserve(0), "no limit")
	require.EqualValues(t, 3, l.read().flying())
	l.connect()
	require.EqualValues(t, 2, l.read().flying())
	require.EqualValues(t, 1, l.read().active())
	l.abandon()
	l.abandon()
	l.abandon()
	require.EqualValues(t, 1, l.read().total(), "a connection is no pick")
	l.connect() // never picked, as far as is known
	require.EqualValues(t, 2, l.read().active())
	require.False(t, l.reserve(2))
	for range 3 {
		l.release()
	}
	require.Zero(t, l.read())
}
