package main

import (
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
)

// addIgnoredFlags adds kube-proxy's flags that mean nothing here, those that it has dropped among them, so that a command
// line that once was right still is. Values of the wrong type are refused as kube-proxy would.
func addIgnoredFlags(f *pflag.FlagSet) {
	for name, value := range map[string]bool{
		"masquerade-all":  false, // clients are always seen with the node's address
		"ipvs-strict-arp": false,
		"cleanup-ipvs":    true,
		// klog: there is one log, and it goes to stderr.
		"logtostderr":                      true,
		"alsologtostderr":                  false,
		"add-dir-header":                   false,
		"legacy-stderr-threshold-behavior": false,
		"one-output":                       false,
		"skip-headers":                     false,
		"skip-log-headers":                 false,
		"log-text-split-stream":            false,
		"log-json-split-stream":            false,
	} {
		f.Bool(name, value, ignoredUsage)
	}
	for name, value := range map[string]int32{
		"iptables-masquerade-bit": 14,
		"conntrack-max":           0,
		"log-file-max-size":       1800,
	} {
		f.Int32(name, value, ignoredUsage)
	}
	for name, value := range map[string]time.Duration{
		"config-sync-period":   15 * time.Minute, // no object is kept that could be looked at again
		"ipvs-sync-period":     30 * time.Second,
		"ipvs-min-sync-period": time.Second,
		"ipvs-tcp-timeout":     0,
		"ipvs-tcpfin-timeout":  0,
		"ipvs-udp-timeout":     0,
		"log-flush-frequency":  5 * time.Second,
	} {
		f.Duration(name, value, ignoredUsage)
	}
	for _, name := range []string{
		"ipvs-scheduler", "ipvs-exclude-cidrs",
		"show-hidden-metrics-for-version", "resource-container",
		"vmodule", "log-dir", "log-file", "log-backtrace-at", "stderrthreshold", "alsologtostderrthreshold",
		"log-text-info-buffer-size", "log-json-info-buffer-size",
		"boot-id-file", "machine-id-file", // cadvisor's, which every kube-proxy has with its libraries
	} {
		f.String(name, "", ignoredUsage)
	}
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Usage == ignoredUsage {
			flag.Hidden = true
		}
	})
}

// ignoredUsage also tells these flags from the others.
const ignoredUsage = "accepted, and means nothing here"

// noteIgnored names the flags without meaning that the command line has.
func (o *options) noteIgnored() {
	var names []string
	o.flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed && f.Usage == ignoredUsage {
			names = append(names, "--"+f.Name)
		}
	})
	slices.Sort(names)
	if len(names) > 0 {
		o.note(logrus.InfoLevel, "these flags of kube-proxy mean nothing here", logrus.Fields{"flags": strings.Join(names, ",")})
	}
}
