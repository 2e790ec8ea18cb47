package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// kernelSetting is a number that the kernel keeps in a file.
type kernelSetting struct {
	flag    string // that it is from
	path    string // below the root
	value   int
	atLeast bool // a larger value is left alone
}

const (
	conntrackSysctls  = "proc/sys/net/netfilter/nf_conntrack_"
	conntrackHashSize = "sys/module/nf_conntrack/parameters/hashsize"
	// maxConntrackMax bounds what many cores ask for. An entry takes about 300 bytes.
	maxConntrackMax = 1 << 20
)

// conntrackSettings are those to be made: all in a cluster, and otherwise those that somebody has asked for.
func (o *options) conntrackSettings(cores int) []kernelSetting {
	var all []kernelSetting
	wanted := func(flag string) bool { return o.cluster() || o.given(flag) }
	if perCore := int(o.conntrackMaxPerCore); perCore > 0 && (wanted("conntrack-max-per-core") || wanted("conntrack-min")) {
		limit := max(min(perCore*cores, maxConntrackMax), int(o.conntrackMin))
		all = append(all,
			kernelSetting{"conntrack-max-per-core", conntrackSysctls + "max", limit, true},
			// A bucket for every four entries. The kernel derives one from the other only while it loads the module.
			kernelSetting{"conntrack-max-per-core", conntrackHashSize, limit / 4, true})
	}
	seconds := func(flag, name string, d time.Duration) {
		if d > 0 && wanted(flag) {
			// The kernel keeps an int of seconds, and 0 would end every flow at once.
			all = append(all, kernelSetting{flag, conntrackSysctls + name, max(1, int(min(d/time.Second, math.MaxInt32))), false})
		}
	}
	seconds("conntrack-tcp-timeout-established", "tcp_timeout_established", o.conntrackTCPEstablished)
	seconds("conntrack-tcp-timeout-close-wait", "tcp_timeout_close_wait", o.conntrackTCPCloseWait)
	if o.conntrackTCPBeLiberal {
		all = append(all, kernelSetting{"conntrack-tcp-be-liberal", conntrackSysctls + "tcp_be_liberal", 1, false})
	}
	seconds("conntrack-udp-timeout", "udp_timeout", o.conntrackUDP)
	seconds("conntrack-udp-timeout-stream", "udp_timeout_stream", o.conntrackUDPStream)
	return all
}

// applySettings makes settings below root, which is "/" but for tests. One that cannot be made costs nobody a connection
// today, so it is a warning; nothing is written where the value is right already.
func applySettings(root string, settings []kernelSetting, log *logrus.Entry) {
	for _, s := range settings {
		log := log.WithFields(logrus.Fields{"setting": "/" + s.path, "value": s.value})
		old, err := s.apply(root)
		switch {
		case err != nil:
			log.WithError(err).Warn("a setting of connection tracking cannot be made, going on without: " + advice(err, s.flag))
		case old != s.value && !(s.atLeast && old > s.value):
			log.WithField("before", old).Info("connection tracking set")
		}
	}
}

// apply returns the value that was there before.
func (s kernelSetting) apply(root string) (old int, err error) {
	path := filepath.Join(root, s.path)
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	old, err = strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", path, err)
	}
	if old == s.value || s.atLeast && old > s.value {
		return old, nil
	}
	// Neither made nor emptied: these are files of the kernel, and where they are not there is none to make.
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return old, err
	}
	_, err = f.WriteString(strconv.Itoa(s.value))
	return old, errors.Join(err, f.Close())
}

// advice says what to do about a setting that cannot be made.
func advice(err error, flag string) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "load the module (modprobe nf_conntrack) before redial starts, or leave the setting alone with --" + flag + "=0"
	case errors.Is(err, unix.EROFS), errors.Is(err, fs.ErrPermission):
		return "let redial write to /proc/sys (a privileged container), run redial --init-only beforehand where it may, set it by sysctl, or leave it alone with --" + flag + "=0"
	}
	return "set it by hand, or leave it alone with --" + flag + "=0"
}

// onlineCores counts the node's cores, since the limit is the node's; runtime.NumCPU counts those that this process may use.
func onlineCores(root string) int {
	b, err := os.ReadFile(filepath.Join(root, "sys/devices/system/cpu/online"))
	if err != nil {
		return runtime.NumCPU()
	}
	n := 0
	for _, part := range strings.Split(strings.TrimSpace(string(b)), ",") { // "0-3,8"
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		lo, err1 := strconv.Atoi(first)
		hi, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || hi < lo {
			return runtime.NumCPU()
		}
		n += hi - lo + 1
	}
	return n
}
