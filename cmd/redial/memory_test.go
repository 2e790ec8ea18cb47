package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestGarbageIsBounded(t *testing.T) {
	t.Parallel()
	for inUse, want := range map[uint64]int{0: 100, 1 << 20: 100, 40 << 20: 100, 80 << 20: 50, 150 << 20: 26, 160 << 20: 25, 1 << 40: 25} {
		assert.Equal(t, want, garbagePercent(inUse), "%d bytes in use", inUse)
	}
}
