package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestGarbageIsBounded(t *testing.T) {
	t.Parallel()
	for inUse, want := range map[uint64]int{0: 100, 1 << 20: 100, 24 << 20: 100, 48 << 20: 50, 96 << 20: 25, 150 << 20: 16, 1 << 40: 16} {
		assert.Equal(t, want, garbagePercent(inUse), "%d bytes in use", inUse)
	}
}
