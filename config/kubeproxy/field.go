package kubeproxy

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Precedence says which of a field and its flag counts.
type Precedence int

const (
	// FileOnly: with a file, the flag does not count, even where the file is silent. So it is for kube-proxy's flags.
	FileOnly Precedence = iota
	// FileFirst: the flag counts where the file is silent. So it is for flags that kube-proxy no longer has.
	FileFirst
	// FlagFirst: the file counts where the flag is not given.
	FlagFirst
)

// field is a field of the file and the flag that says the same.
type field struct {
	path       string // as one would look it up in the file: "iptables.syncPeriod"
	flag       string // without dashes; empty: there is none, and the field has no meaning
	precedence Precedence
	fallback   string                       // the value that means as much as none
	get        func(*Config) (string, bool) // the flag's value, and whether the file has one
	set        func(*Config, string) error  // the reverse of get
}

func (f field) first(p Precedence) field {
	f.precedence = p
	return f
}

// or says which value is no news.
func (f field) or(fallback string) field {
	f.fallback = fallback
	return f
}

// plain makes a field of which the zero value means that the file is silent.
func plain[T comparable](path, flag string, at func(*Config) *T, format func(T) string, parse func(string) (T, error)) field {
	return field{
		path: path, flag: flag,
		get: func(c *Config) (string, bool) {
			var zero T
			v := *at(c)
			return format(v), v != zero
		},
		set: func(c *Config, s string) error {
			v, err := parse(s)
			if err == nil {
				*at(c) = v
			}
			return err
		},
	}
}

// pointer makes a field of which nil means that the file is silent, and zero is a value.
func pointer[T any](path, flag string, at func(*Config) **T, format func(T) string, parse func(string) (T, error)) field {
	return field{
		path: path, flag: flag,
		get: func(c *Config) (string, bool) {
			if v := *at(c); v != nil {
				return format(*v), true
			}
			return "", false
		},
		set: func(c *Config, s string) error {
			v, err := parse(s)
			if err == nil {
				*at(c) = &v
			}
			return err
		},
	}
}

func text[T ~string](path, flag string, at func(*Config) *T) field {
	return plain(path, flag, at, func(v T) string { return string(v) }, func(s string) (T, error) { return T(s), nil })
}

func truth(path, flag string, at func(*Config) *bool) field {
	return plain(path, flag, at, strconv.FormatBool, strconv.ParseBool)
}

func period(path, flag string, at func(*Config) *metav1.Duration) field {
	return plain(path, flag, at, formatDuration, parseDuration)
}

func number(path, flag string, at func(*Config) **int32) field {
	return pointer(path, flag, at, formatInt, parseInt)
}

func list(path, flag string, at func(*Config) *[]string) field {
	return field{
		path: path, flag: flag,
		get: func(c *Config) (string, bool) { return strings.Join(*at(c), ","), len(*at(c)) > 0 },
		set: func(c *Config, s string) error {
			*at(c) = nil
			if s != "" {
				*at(c) = strings.Split(s, ",")
			}
			return nil
		},
	}
}

func formatDuration(d metav1.Duration) string { return d.Duration.String() }

func parseDuration(s string) (metav1.Duration, error) {
	d, err := time.ParseDuration(s)
	return metav1.Duration{Duration: d}, err
}

func formatInt(n int32) string { return strconv.Itoa(int(n)) }

func parseInt(s string) (int32, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	return int32(n), err
}

func formatGates(gates map[string]bool) string {
	var s []string
	for _, name := range sortedKeys(gates) {
		s = append(s, fmt.Sprintf("%s=%t", name, gates[name]))
	}
	return strings.Join(s, ",")
}

func parseGates(s string) (map[string]bool, error) {
	gates := map[string]bool{}
	for _, gate := range strings.Split(s, ",") {
		if gate == "" {
			continue
		}
		name, value, _ := strings.Cut(gate, "=")
		on, err := strconv.ParseBool(value)
		if err != nil {
			return nil, fmt.Errorf("%q: want NAME=true or NAME=false", gate)
		}
		gates[name] = on
	}
	return gates, nil
}
