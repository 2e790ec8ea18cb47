package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// table is a Markdown table whose columns are aligned in plain text as well.
type table struct{ rows [][]string }

func newTable(header ...string) *table { return &table{rows: [][]string{header}} }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) String() string {
	width := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row[:min(len(row), len(width))] {
			width[i] = max(width[i], len([]rune(cell)), 3)
		}
	}
	var b strings.Builder
	for n, row := range t.rows {
		for i := range width {
			cell := ""
			if i < len(row) {
				cell = row[i]
			}
			b.WriteString("| " + cell + strings.Repeat(" ", width[i]-len([]rune(cell))) + " ")
		}
		b.WriteString("|\n")
		if n == 0 {
			for _, w := range width {
				b.WriteString("|" + strings.Repeat("-", w+2))
			}
			b.WriteString("|\n")
		}
	}
	return b.String()
}

// spread is the median of some measurements and how far they lie apart.
type spread[T cmp.Ordered] struct{ median, min, max T }

// spreadOf summarises measurements. Of an even number, the median is the lower of the two in the middle: one that was seen.
func spreadOf[T cmp.Ordered](values []T) spread[T] {
	if len(values) == 0 {
		return spread[T]{}
	}
	sorted := slices.Sorted(slices.Values(values))
	return spread[T]{median: sorted[(len(sorted)-1)/2], min: sorted[0], max: sorted[len(sorted)-1]}
}

// format writes the median and, in parentheses, the range.
func (s spread[T]) format(one func(T) string) string {
	return fmt.Sprintf("%s (%s-%s)", one(s.median), one(s.min), one(s.max))
}

// percentile returns the smallest of the sorted values that p percent of them do not exceed.
func percentile[T uint32 | time.Duration](sorted []T, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := (len(sorted)*p+99)/100 - 1
	return time.Duration(sorted[max(i, 0)])
}

// micros writes nanoseconds as microseconds.
func micros(v float64) string { return fmt.Sprintf("%.1f", v/1e3) }

func ratio(v float64) string { return fmt.Sprintf("%.2f", v) }

func perSecond(v float64) string { return fmt.Sprintf("%.0f", v) }

func mebibytes(v int64) string { return fmt.Sprintf("%.1f", float64(v)/(1<<20)) }

// environment says where figures are from.
type environment struct {
	Date     string   `json:"date"`
	Kernel   string   `json:"kernel"`
	CPUs     int      `json:"cpus"`
	MaxFDs   uint64   `json:"maxFDs"` // that a process may have: it bounds the proxies' sessions
	Versions []string `json:"versions"`
}

func environmentOf(all []*system) environment {
	e := environment{Date: time.Now().UTC().Format("2006-01-02 15:04 UTC"), CPUs: runtime.NumCPU(), MaxFDs: fileLimit(), Kernel: "unknown"}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		e.Kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	for _, s := range all {
		switch {
		case s.absent != "":
			e.Versions = append(e.Versions, s.name+" absent: "+s.absent)
		case s.version != "" && !slices.Contains(e.Versions, s.version):
			e.Versions = append(e.Versions, s.version)
		}
	}
	return e
}

func (e environment) String() string {
	return fmt.Sprintf("%s, %s, %d CPUs, at most %d descriptors per process\n%s\n", e.Date, e.Kernel, e.CPUs, e.MaxFDs, strings.Join(e.Versions, "; "))
}

// progress writes a line that is not part of the result.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
