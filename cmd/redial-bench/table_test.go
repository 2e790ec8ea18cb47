package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestTableIsAlignedMarkdown(t *testing.T) {
	table := newTable("system", "µs")
	table.add("a", "12.5")
	table.add("longer name")
	assert.Equal(t, strings.Join([]string{
		"| system      | µs   |",
		"|-------------|------|",
		"| a           | 12.5 |",
		"| longer name |      |",
		"",
	}, "\n"), table.String())
}

func TestSpread(t *testing.T) {
	for _, test := range []struct {
		name   string
		values []int
		want   spread[int]
	}{
		{"nothing", nil, spread[int]{}},
		{"one", []int{7}, spread[int]{7, 7, 7}},
		{"odd", []int{9, 1, 5}, spread[int]{5, 1, 9}},
		{"even: the lower of the two in the middle", []int{4, 3, 2, 1}, spread[int]{2, 1, 4}},
	} {
		t.Run(test.name, func(t *testing.T) { assert.Equal(t, test.want, spreadOf(test.values)) })
	}
	assert.Equal(t, "2.00 (1.00-4.00)", spreadOf([]float64{4, 2, 1}).format(ratio))
}

func TestSpreadLeavesItsInputAlone(t *testing.T) {
	values := []int{3, 1, 2}
	spreadOf(values)
	assert.Equal(t, []int{3, 1, 2}, values)
}

func TestPercentile(t *testing.T) {
	hundred := make([]uint32, 100)
	for i := range hundred {
		hundred[i] = uint32(i + 1)
	}
	for _, test := range []struct {
		sorted []uint32
		p      int
		want   time.Duration
	}{
		{nil, 50, 0}, {[]uint32{8}, 1, 8}, {[]uint32{8}, 99, 8}, {[]uint32{1, 2, 3}, 50, 2},
		{hundred, 50, 50}, {hundred, 99, 99}, {hundred, 100, 100},
	} {
		assert.Equal(t, test.want, percentile(test.sorted, test.p), "%d%% of %v", test.p, test.sorted)
	}
}

func TestQuotientsAreOfTheSameRound(t *testing.T) {
	assert.Equal(t, []float64{2, 0.5}, quotients([]float64{4, 1, 9}, []float64{2, 2}))
	assert.Equal(t, []float64{3}, quotients([]float64{1, 3}, []float64{0, 1}), "what was not measured is left out")
}
