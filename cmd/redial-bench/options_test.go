package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOptionsAreBounded(t *testing.T) {
	assert.NoError(t, (&options{rounds: 1, seconds: 0.1}).validate())
	for _, bad := range []options{{rounds: 0, seconds: 1}, {rounds: 1001, seconds: 1}, {rounds: 1}, {rounds: 1, seconds: math.NaN()}, {rounds: 1, seconds: 4000}} {
		assert.Error(t, bad.validate(), "%+v", bad)
	}
}
