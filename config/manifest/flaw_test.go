package manifest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A value that an API server would have refused does not replace one that works, and is found in the file.
func TestRefusedValueKeepsTheLastGoodVersion(t *testing.T) {
	good := service("web", "10.0.0.1")
	b := follow(t, "a.yaml", "# first\n---\n"+good, "s.yaml", slice("web-1", "web", "10.1.0.1"))
	b.write("a.yaml", "# first\n---\n"+strings.Replace(good, "port: 80", "port: 70000", 1))
	b.write("s.yaml", slice("web-1", "web", "10.1.0.300"))
	b.until(func() bool { return len(b.source.Problems()) == 2 }, "both problems")
	want := []Problem{
		{b.path("a.yaml"), 1, "Service default/web", "spec.ports[0].port 70000 is not within 1-65535", true},
		{b.path("s.yaml"), 1, "EndpointSlice default/web-1", "", true},
	}
	got := b.source.Problems()
	require.Contains(t, got[1].Message, "10.1.0.300")
	got[1].Message = ""
	require.Equal(t, want, got)
	b.clusterIP("default/web", "10.0.0.1")
	s := b.state["default/web"]
	require.Len(t, s.Ports, 1)
	require.EqualValues(t, 80, s.Ports[0].Port)
	require.Len(t, s.Ports[0].Endpoints, 1)
	require.Empty(t, s.Problems)

	// Another mistake is no better.
	b.write("a.yaml", strings.Replace(service("web", "10.0.0.2"), "port: 80", "port: 0", 1))
	b.until(func() bool { return strings.Contains(b.source.Problems()[0].Message, "port 0 ") }, "the new problem")
	b.clusterIP("default/web", "10.0.0.1")

	b.write("a.yaml", service("web", "10.0.0.3"))
	b.write("s.yaml", slice("web-1", "web", "10.1.0.3"))
	b.clusterIP("default/web", "10.0.0.3")
	b.until(func() bool { return len(b.source.Problems()) == 0 }, "no problem")
	b.stop()
}

// Where there is no earlier version, what is right in the object is better than nothing.
func TestRefusedValueFromTheStart(t *testing.T) {
	flawed := service("web", "10.0.0.1") + "  externalIPs: [nonsense]\n"
	b := follow(t, "a.yaml", flawed)
	b.clusterIP("default/web", "10.0.0.1")
	require.Len(t, b.source.Problems(), 1)
	p := b.source.Problems()[0]
	require.Contains(t, p.Message, "spec.externalIPs[0]")
	require.False(t, p.Retained)

	// The next attempt, flawed as well, is as good as the first.
	b.write("a.yaml", strings.Replace(flawed, "10.0.0.1", "10.0.0.2", 1))
	b.clusterIP("default/web", "10.0.0.2")
	require.Len(t, b.source.Problems(), 1)
	b.write("a.yaml", service("web", "10.0.0.2"))
	b.until(func() bool { return len(b.source.Problems()) == 0 }, "no problem")
	b.stop()
}
