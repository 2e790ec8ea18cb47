package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"redial/balancer"
	"redial/config"
)

// What a Service may ask for by annotation is what the balancer can do.
func TestSchedulersOfBothKindsAgree(t *testing.T) {
	t.Parallel()
	for _, name := range config.Schedulers {
		_, err := balancer.ParseScheduler(name)
		assert.NoError(t, err)
	}
	_, err := balancer.ParseScheduler("none")
	assert.Error(t, err)
}
