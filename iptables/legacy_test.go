package iptables

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept"
	"redial/proxy/intercept/lab"
)

// Legacy tables, too, are looked at without running a program as long as nobody has changed them, and whatever has changed
// is seen: an equal number of rules of an equal size as well. What passes through them is no change.
func TestLegacyLooksRunNothing(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		s := newSpy()
		r := startWith(t, testConfig(ModeLegacy), s)
		require.NoError(t, r.Commit(t.Context(), intercept.State{Bindings: twoFamilies()}))
		generations := func() (of [2]uint32) {
			for i, v6 := range []bool{false, true} {
				sum, known := legacyGeneration(v6)
				require.True(t, known)
				of[i] = sum
			}
			return of
		}
		before := generations()
		serve(t, 20033)
		conn, err := net.Dial("tcp", "127.0.0.1:20033")
		require.NoError(t, err)
		conn.Close()
		s.reset()
		require.True(t, verify(t, r))
		assert.Zero(t, s.execs)
		assert.Equal(t, before, generations())

		sh(t, node, "ip6tables-legacy -A FORWARD -s 2001:db8::1 -j ACCEPT")
		after := generations()
		assert.Equal(t, before[0], after[0])
		assert.NotEqual(t, before[1], after[1])
		require.True(t, verify(t, r))
		assert.Equal(t, 1, s.execs, "the family that was changed")
		sh(t, node, "ip6tables-legacy -R FORWARD 1 -s 2001:db8::2 -j ACCEPT")
		assert.NotEqual(t, after, generations())
	})
}

func TestHashEntriesTakesNoOthers(t *testing.T) {
	t.Parallel()
	for _, bytes := range [][]byte{make([]byte, 50), make([]byte, 112), make([]byte, 400)} {
		assert.False(t, hashEntries(nil, bytes, entryLayout4))
	}
}
