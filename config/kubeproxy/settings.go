package kubeproxy

import (
	"fmt"

	"k8s.io/kube-proxy/config/v1alpha1"
)

// Setting is one field of the file as the flag that says the same.
type Setting struct {
	Field string // where in the file: "iptables.syncPeriod"
	Flag  string // without dashes; lists are separated by commas
	Value string
}

// Settings are the fields that the file says something in and that have a flag, in the order of the file.
func (c *Config) Settings() []Setting {
	var all []Setting
	for _, f := range fields {
		if v, ok := f.get(c); ok && f.flag != "" {
			all = append(all, Setting{Field: f.path, Flag: f.flag, Value: v})
		}
	}
	return all
}

// Meaningless names the fields that the file says something in and that have no flag, since they mean nothing to a
// userspace proxy on Linux.
func (c *Config) Meaningless() []string {
	var all []string
	for _, f := range fields {
		if v, ok := f.get(c); ok && f.flag == "" && v != f.fallback {
			all = append(all, f.path)
		}
	}
	return all
}

// Flags returns the flags that the file has a field for, and which of the two counts.
func Flags() map[string]Precedence {
	all := map[string]Precedence{}
	for _, f := range fields {
		if f.flag != "" {
			all[f.flag] = f.precedence
		}
	}
	return all
}

// Set sets the field of a flag. kept is false if there is none, or if the file cannot hold the value: the fields have no
// way to say "none" where that is not the default, as of an address to serve on.
func (c *Config) Set(flag, value string) (kept bool, err error) {
	for _, f := range fields {
		if f.flag != flag {
			continue
		}
		if err := f.set(c, value); err != nil {
			return false, fmt.Errorf("%s: %w", f.path, err)
		}
		_, kept := f.get(c)
		return kept, nil
	}
	return false, nil
}

func modeOf(c *Config) *v1alpha1.ProxyMode { return &c.Mode }

func localModeOf(c *Config) *v1alpha1.LocalMode { return &c.DetectLocalMode }
