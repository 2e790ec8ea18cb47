package intercept

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestParsePortRange(t *testing.T) {
	for in, want := range map[string]PortRange{
		"61000-65535": {61000, 65535},
		"61000+99":    {61000, 61099},
		"61000":       {61000, 61000},
		" 1 - 2 ":     {1, 2},
	} {
		got, err := ParsePortRange(in)
		assert.NoError(t, err, in)
		assert.Equal(t, want, got, in)
	}
	for _, in := range []string{"", "0", "0-0", "0-5", "9-1", "70000", "1-70000", "65000+1000", "a-b", "1-2-3", "-1", "+", "-"} {
		_, err := ParsePortRange(in)
		assert.Error(t, err, in)
	}
}

func TestPortRange(t *testing.T) {
	var empty PortRange
	r := PortRange{10, 12}
	assert.Equal(t, 0, empty.Size())
	assert.Equal(t, 3, r.Size())
	assert.True(t, r.Contains(10) && r.Contains(12))
	assert.False(t, r.Contains(9) || r.Contains(13) || empty.Contains(0))
	assert.True(t, r.Overlaps(PortRange{12, 20}))
	assert.False(t, r.Overlaps(PortRange{13, 20}) || r.Overlaps(empty))
}
