package iptables

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Only what may go away by itself is worth waiting for; for the rest another way of interception is.
func TestPassing(t *testing.T) {
	locked := newToolError("reading", "Another app is currently holding the xtables lock.", exitStatus(4))
	missing := newToolError("reading", "", exec.ErrNotFound)
	table := newToolError("reading", "can't initialize iptables table `nat': Table does not exist", exitStatus(3))
	for _, err := range []error{locked, newToolError("reading", "", context.Canceled), fmt.Errorf("no usable iptables: %w", errors.Join(missing, fmt.Errorf("nat: %w", locked)))} {
		assert.True(t, Passing(err), err)
	}
	for _, err := range []error{nil, missing, table, errors.Join(missing, table), fmt.Errorf("x: %w", table), errors.New("x")} {
		assert.False(t, Passing(err), err)
	}
}
