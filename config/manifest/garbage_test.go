package manifest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// garbage is a manifest of which little is right.
func garbage(rnd *rand.Rand, i int) []byte {
	ip := fmt.Sprintf("10.%d.%d.%d", 1+rnd.IntN(200), rnd.IntN(256), rnd.IntN(256))
	data := []byte(service(fmt.Sprintf("g-%d", i), ip) + "---\n" + slice(fmt.Sprintf("g-%d", i), "good", ip))
	tokens := []string{"---\n", "...\n", "\t", "{", "}", "[", "]", ": ", "- ", "&a ", "*a", "!!binary ", "|\n", "\x00", "\xff\xfe", "\"", "'",
		"null", "true", "1e999", "99999999999999999999", "0x", "kind: List\n", "items:\n", "apiVersion: v2\n", "metadata: 5\n", "<<: *a\n", "%", "#"}
	switch rnd.IntN(6) {
	case 0: // noise
		data = make([]byte, rnd.IntN(200))
		for j := range data {
			data[j] = byte(rnd.UintN(256))
		}
	case 1: // words
		data = nil
		for range rnd.IntN(40) {
			data = append(data, tokens[rnd.IntN(len(tokens))]...)
		}
	case 2: // cut off
		data = data[:rnd.IntN(len(data))]
	default:
		for range 1 + rnd.IntN(6) {
			at := rnd.IntN(len(data))
			if rnd.IntN(2) == 0 {
				data[at] = byte(rnd.UintN(128))
			} else {
				token := tokens[rnd.IntN(len(tokens))]
				data = append(data[:at:at], append([]byte(token), data[at:]...)...)
			}
		}
	}
	return data
}

// Ten thousand spoilt files beside one good: each is accounted for, and the good one is served.
func TestGarbage(t *testing.T) {
	const n = 10_000
	rnd := rand.New(rand.NewPCG(3, 5))
	b := newBed(t)
	contents := map[string][]byte{}
	for i := range n {
		name := fmt.Sprintf("%d/g-%d%s", i%37, i, []string{".yaml", ".yml", ".json"}[i%3])
		contents[b.path(name)] = garbage(rnd, i)
		b.write(name, string(contents[b.path(name)]))
	}
	b.write("m.yaml", service("good", "10.0.0.1")+"---\n"+slice("good-1", "good", "127.0.0.1"))
	b.start(func(s *Source) { s.poll = time.Hour })
	b.clusterIP("default/good", "10.0.0.1")
	require.Contains(t, fmt.Sprint(b.state["default/good"].Ports[0].Endpoints), "127.0.0.1:8080")

	problems := map[string]int{}
	for _, p := range b.source.Problems() {
		require.NotEmpty(t, p.Message)
		require.NotContains(t, p.Message, "panicked")
		problems[p.File]++
	}
	require.Greater(t, len(problems), n/2, "most of it must be garbage, or this tests nothing")
	silent := 0
	seen := 0
	for path, data := range contents {
		if seen++; seen%10 > 0 && problems[path] > 0 {
			continue // of those that were reported, a tenth is checked for having been reported in full
		}
		c := decodeFile(path, data)
		good := 0
		for _, e := range c.entries {
			if e.problem == "" {
				good++
			}
		}
		require.GreaterOrEqual(t, problems[path], len(c.entries)-good, "%s: %q", path, data)
		if problems[path] == 0 && good == 0 && len(c.skipped) == 0 {
			silent++
			// Nothing was said about it: then there must be nothing in it.
			if filepath.Ext(path) != ".json" {
				for _, doc := range splitYAML(toUTF8(data)) {
					raw, err := toJSON(doc)
					require.NoError(t, err)
					require.Equal(t, "null", string(raw), "%q", data)
				}
			}
		}
	}
	require.Less(t, silent, n/10)

	// And it is still being followed.
	require.NoError(t, os.WriteFile(b.path("m.yaml"), []byte(service("good", "10.0.0.2")), 0o644))
	b.clusterIP("default/good", "10.0.0.2")
	b.stop()
}
