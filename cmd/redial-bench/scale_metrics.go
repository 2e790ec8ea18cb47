package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// samples are metrics in the text format, one a line, by name and labels.
type samples map[string]float64

// sum adds up the series of a family whose labels have all these values.
func (m samples) sum(family string, values ...string) (sum float64) {
series:
	for series, v := range m {
		name, labels, _ := strings.Cut(series, "{")
		if name != family {
			continue
		}
		for _, value := range values {
			if !strings.Contains(labels, strconv.Quote(value)) {
				continue series
			}
		}
		sum += v
	}
	return sum
}

func parseSamples(r io.Reader) (samples, error) {
	m := samples{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metric %q: %w", line, err)
		}
		m[line[:i]] = v
	}
	return m, lines.Err()
}

// scrape reads the node's metrics.
func scrape(ctx context.Context) (m samples, err error) {
	err = apart(func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, metricsURL, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		m, err = parseSamples(resp.Body)
		return err
	})
	return m, err
}

// apart runs f on a thread of the node, whosever network the calling one is in.
func apart(f func() error) error {
	done := make(chan error)
	go func() { done <- f() }()
	return <-done
}
