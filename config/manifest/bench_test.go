package manifest

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"redial/config"
)

func discard() *logrus.Entry {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return logrus.NewEntry(log)
}

func writeServices(tb testing.TB, dir string, n int) {
	for i := 0; i < n; i += 100 {
		var text strings.Builder
		for j := i; j < i+100; j++ {
			name := fmt.Sprintf("svc-%d", j)
			text.WriteString("---\n" + service(name, fmt.Sprintf("10.%d.%d.%d", 100+j/65536, j/256%256, j%256)))
			text.WriteString("---\n" + slice(name+"-1", name, "10.9.0.1"))
		}
		require.NoError(tb, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d.yaml", i)), []byte(text.String()), 0o644))
	}
}

// BenchmarkFirstScan is a cold start: a Service and its slice per document pair, a hundred pairs per file.
func BenchmarkFirstScan(b *testing.B) {
	for _, n := range []int{1000, 30_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dir := b.TempDir()
			writeServices(b, dir, n)
			b.ReportAllocs()
			for b.Loop() {
				s := New(dir, config.NewTracker(config.Options{}), discard())
				if _, err := s.scan(b.Context(), newWatch(s.log, s.newWatcher), true); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
