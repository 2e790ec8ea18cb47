package kube

import (
	"bytes"
	"flag"
	"fmt"

	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"
)

// RouteKlog sends what client-go says through klog to log: warnings and errors at their own level, all else at debug
// level. It is for the whole process, and for the start of it.
func RouteKlog(log *logrus.Entry) error {
	// The only access to these settings is by flag. klog's own logger interface is no way: it hands warnings over as infos.
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{
		"logtostderr":     "false",
		"alsologtostderr": "false",
		"stderrthreshold": "FATAL",
		"one_output":      "true", // or an error is an error, a warning and an info
		"skip_headers":    "true",
	} {
		if err := flags.Set(name, value); err != nil {
			return fmt.Errorf("setting klog's -%s: %w", name, err)
		}
	}
	log = log.WithField("component", "client-go")
	for severity, level := range map[string]logrus.Level{
		"INFO": logrus.DebugLevel, "WARNING": logrus.WarnLevel, "ERROR": logrus.ErrorLevel, "FATAL": logrus.ErrorLevel,
	} {
		klog.SetOutputBySeverity(severity, klogWriter{log, level})
	}
	return nil
}

// klogWriter gets one message a call; klog holds its lock meanwhile.
type klogWriter struct {
	log   *logrus.Entry
	level logrus.Level
}

func (w klogWriter) Write(b []byte) (int, error) {
	w.log.Log(w.level, string(bytes.TrimSpace(b)))
	return len(b), nil
}
