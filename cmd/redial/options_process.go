package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// processOptions are about the program as such.
type processOptions struct {
	configFile    string
	writeConfigTo string
	cleanup       bool
	initOnly      bool
	oomScoreAdj   int32
	featureGates  []string // NAME=true or NAME=false
	adminSocket   string
}

func defaultProcessOptions() processOptions {
	return processOptions{oomScoreAdj: -999, adminSocket: defaultSocket()}
}

// defaultSocket is in /run for root, and where the session's runtime files are for others, among them the root of a user
// namespace.
func defaultSocket() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" && unix.Access("/run", unix.W_OK) != nil {
		return filepath.Join(dir, "redial.sock")
	}
	return "/run/redial.sock"
}

func (o *processOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.configFile, "config", o.configFile, "kube-proxy's configuration file (KubeProxyConfiguration, kubeproxy.config.k8s.io/v1alpha1): takes the place of all flags that it has a field for, but for --hostname-override and those of the log; redial ends when it changes, to be started again")
	f.StringVar(&o.writeConfigTo, "write-config-to", o.writeConfigTo, "write such a file, of the flags given and the defaults, and exit")
	f.BoolVar(&o.cleanup, "cleanup", o.cleanup, "remove redial's rules and exit, like redial cleanup")
	f.BoolVar(&o.initOnly, "init-only", o.initOnly, "only do what needs all privileges, the settings of connection tracking and the process, and exit")
	f.Int32Var(&o.oomScoreAdj, "oom-score-adj", o.oomScoreAdj, "how readily the kernel ends redial when memory runs out, -1000 (never) to 1000; left alone with --manifests unless it is given")
	f.StringSliceVar(&o.featureGates, "feature-gates", o.featureGates, "kube-proxy's feature gates, NAME=true or NAME=false: AllowServiceExternalIPs=false is --disable-external-ips, others mean nothing here")
	o.addSocketFlag(f)
}

func (o *processOptions) addSocketFlag(f *pflag.FlagSet) {
	f.StringVar(&o.adminSocket, "admin-socket", o.adminSocket, "unix socket of the admin API, which redial status reads")
}

func (o *options) validateProcess(c *complaints) {
	if o.oomScoreAdj < -1000 || o.oomScoreAdj > 1000 {
		c.add("--oom-score-adj %d: want -1000 to 1000", o.oomScoreAdj)
	}
	var meaningless []string
	for _, gate := range o.featureGates {
		name, value, _ := strings.Cut(strings.TrimSpace(gate), "=")
		on, err := strconv.ParseBool(value)
		switch {
		case gate == "":
		case err != nil:
			c.add("--feature-gates %q: want NAME=true or NAME=false", gate)
		case name == "AllowServiceExternalIPs": // KEP-5707
			o.disableExternalIPs = o.disableExternalIPs || !on
		default:
			meaningless = append(meaningless, gate)
		}
	}
	if len(meaningless) > 0 {
		o.note(logrus.InfoLevel, "these feature gates mean nothing here", logrus.Fields{"gates": strings.Join(meaningless, ",")})
	}
}
