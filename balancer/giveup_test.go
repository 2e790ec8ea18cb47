package balancer

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A dial that was given up because the client left is not held against the backend, nor against the client.
func TestGivenUpDialChangesNothing(t *testing.T) {
	b := New(nil)
	backends := []netip.AddrPort{netip.MustParseAddrPort("198.18.0.1:1"), netip.MustParseAddrPort("198.18.0.2:1")}
	b.Update(Config{Backends: weighted(backends, 1), Affinity: time.Hour})
	client := netip.MustParseAddr("198.18.9.9")
	pinned, _ := b.Pick(client, nil)
	b.Report(client, pinned, 0, fmt.Errorf("dial: %w", context.Canceled))
	again, _ := b.Pick(client, nil)
	assert.Equal(t, pinned, again)
	for _, s := range b.Backends() {
		assert.Zero(t, s.Failed)
		assert.Empty(t, s.LastError)
	}
}
