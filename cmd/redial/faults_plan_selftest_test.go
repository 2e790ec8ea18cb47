package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFaultPlanIsAFunctionOfItsSeed(t *testing.T) {
	sequence := func(seed uint64) (events []string) {
		p := newPlan(seed, faultKinds)
		for range 500 {
			events = append(events, p.next().String())
		}
		return events
	}
	assert.Equal(t, sequence(7), sequence(7))
	assert.NotEqual(t, sequence(7), sequence(8))
}

func TestFaultPlanLeavesSomebodyToServe(t *testing.T) {
	p := newPlan(1, faultKinds)
	seen, together := map[string]int{}, 0
	for range 20000 {
		e := p.next()
		seen[e.kind]++
		require.True(t, p.anchored(-1), "%v", e)
		broken := 0
		for i := range p.pods {
			if !p.pods[i].good() {
				broken++
			}
		}
		together = max(together, broken)
	}
	assert.Len(t, seen, len(faultKinds))
	assert.Equal(t, faultPods-1, together, "faults overlap as far as they may")
	for _, e := range p.rest() {
		seen[e.kind]++
	}
	for i := range p.pods {
		assert.True(t, p.pods[i].good())
	}
	assert.Equal(t, settings{}, p.settings)
}
