package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
)

// options are the command line and what the configuration file says in its place. Flags that kube-proxy has too, or has
// had, have its names and mean the same; where a default differs, the flag says so.
type options struct {
	sourceOptions
	nodeOptions
	steeringOptions
	relayOptions
	serveOptions
	conntrackOptions
	processOptions
	logOptions

	flags *pflag.FlagSet // those that were added last; nil for options that no command line has
	// content is the configuration file as it was read, commandLine the flags beside it.
	content     []byte
	commandLine [][2]string
	// notes are for the log, which exists only when the options are known.
	notes []note
}

// note is a line for the log.
type note struct {
	level   logrus.Level
	message string
	fields  logrus.Fields
}

func defaultOptions() *options {
	return &options{
		sourceOptions:    defaultSourceOptions(),
		nodeOptions:      defaultNodeOptions(),
		steeringOptions:  defaultSteeringOptions(),
		relayOptions:     defaultRelayOptions(),
		serveOptions:     defaultServeOptions(),
		conntrackOptions: defaultConntrackOptions(),
		processOptions:   defaultProcessOptions(),
		logOptions:       defaultLogOptions(),
	}
}

// flagGroup is a part of the flags, for the help.
type flagGroup struct {
	title string
	add   func(*pflag.FlagSet)
}

func (o *options) groups() []flagGroup {
	return []flagGroup{
		{"Where the Services are read", o.sourceOptions.addFlags},
		{"The node", o.nodeOptions.addFlags},
		{"Steering traffic to the proxy", o.steeringOptions.addFlags},
		{"Relaying it", o.relayOptions.addFlags},
		{"Health and metrics", o.serveOptions.addFlags},
		{"Connection tracking, which is left alone with --manifests unless these are given", o.conntrackOptions.addFlags},
		{"The process", o.processOptions.addFlags},
		{"Logging", o.logOptions.addFlags},
	}
}

func (o *options) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.SetNormalizeFunc(normalizeFlag)
	for _, g := range o.groups() {
		g.add(f)
	}
	addIgnoredFlags(f)
	o.flags = f
}

// normalizeFlag accepts underscores for dashes, as kube-proxy does: klog's flags have them. And a few flags have gone by
// another name.
func normalizeFlag(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	name = strings.ReplaceAll(name, "_", "-")
	switch name {
	case "node-name":
		name = "hostname-override"
	case "cleanup-iptables": // until Kubernetes 1.13
		name = "cleanup"
	}
	return pflag.NormalizedName(name)
}

// given reports whether the command line or the configuration file sets a flag.
func (o *options) given(flag string) bool { return o.flags != nil && o.flags.Changed(flag) }

// cluster reports whether the Services are those of a cluster.
func (o *options) cluster() bool { return o.manifests == "" }

func (o *options) note(level logrus.Level, message string, fields logrus.Fields) {
	o.notes = append(o.notes, note{level, message, fields})
}

func (o *options) logNotes(log *logrus.Entry) {
	for _, n := range o.notes {
		log.WithFields(n.fields).Log(n.level, n.message)
	}
}

// complaints are all that is wrong with the options, so that it can be said at once.
type complaints []error

func (c *complaints) add(format string, args ...any) { *c = append(*c, fmt.Errorf(format, args...)) }

func (c *complaints) oneOf(flag, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		c.add("--%s %q: want one of %s", flag, value, strings.Join(allowed, ", "))
	}
}

func (c *complaints) positive(flag string, d time.Duration) {
	if d <= 0 {
		c.add("--%s %s: must be more than 0", flag, d)
	}
}

func (c *complaints) notNegative(flag string, d time.Duration) {
	if d < 0 {
		c.add("--%s %s: must not be negative", flag, d)
	}
}

// validate checks what the flags' own types do not, and parses the rest.
func (o *options) validate() error {
	var c complaints
	o.validateSource(&c)
	o.validateNode(&c)
	o.validateSteering(&c)
	o.validateRelay(&c)
	o.validateServe(&c)
	o.validateConntrack(&c)
	o.validateProcess(&c)
	o.validateLog(&c)
	return errors.Join(c...)
}
