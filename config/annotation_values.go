package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

func readScheduler(s *Settings, value string) error {
	if !slices.Contains(Schedulers, value) {
		return fmt.Errorf("is not one of %s", strings.Join(Schedulers, ", "))
	}
	s.Scheduler = value
	return nil
}

func readWeights(s *Settings, value string) (err error) {
	s.Weights, err = parseWeights(value)
	return err
}

func readProxyProtocol(s *Settings, value string) error {
	switch value {
	case "v1":
		s.ProxyProtocol = 1
	case "v2":
		s.ProxyProtocol = 2
	default:
		return fmt.Errorf("is neither v1 nor v2")
	}
	return nil
}

// span is the durations that an annotation can have.
type span struct {
	min, max time.Duration
	nothing  spelling
}

// spelling is how the setting 0 is written.
type spelling uint8

const (
	byZero   spelling = 1 << iota // a duration of 0
	byOff                         // the word
	notAtAll spelling = 0
)

func readDuration(field func(*Settings) *Setting[time.Duration], within span) func(*Settings, string) error {
	want := fmt.Sprintf("is not a duration like 500ms, 5s or 1h30m within %s-%s", brief(within.min), brief(within.max))
	if within.nothing&byZero != 0 {
		want += ", nor 0"
	}
	if within.nothing&byOff != 0 {
		want += ", nor off"
	}
	return func(s *Settings, value string) error {
		d, err := time.ParseDuration(value)
		switch {
		case value == "off" && within.nothing&byOff != 0:
			d = 0
		case err == nil && d == 0 && within.nothing&byZero != 0:
		case err != nil || d < within.min || d > within.max:
			return fmt.Errorf("%s", want)
		}
		*field(s) = SetTo(d)
		return nil
	}
}

// brief writes a duration without its zeros.
func brief(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func readCount(field func(*Settings) *Setting[int32]) func(*Settings, string) error {
	const most = 1_000_000_000
	return func(s *Settings, value string) error {
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil || n > most {
			return fmt.Errorf("is not a whole number within 0-%d", most)
		}
		*field(s) = SetTo(int32(n))
		return nil
	}
}

// shown quotes what somebody wrote, or its beginning: an annotation can be as long as a book.
func shown(s string) string {
	const most = 64
	if len(s) > most {
		return strconv.Quote(strings.ToValidUTF8(s[:most], "")) + "..."
	}
	return strconv.Quote(s)
}
