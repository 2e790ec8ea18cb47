package main

import (
	"fmt"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
)

// logOptions are redial's own and, where those are not given, kube-proxy's.
type logOptions struct {
	logLevel      string
	logFormat     string
	verbosity     int32 // klog's -v
	loggingFormat string
}

// debugVerbosity is from which -v on kube-proxy, too, logs what it does to single objects.
const debugVerbosity = 4

func defaultLogOptions() logOptions {
	return logOptions{logLevel: "info", logFormat: "text", loggingFormat: "text"}
}

func (o *logOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.logLevel, "log-level", o.logLevel, "error, warn, info (changes of state) or debug (connections)")
	f.StringVar(&o.logFormat, "log-format", o.logFormat, "text or json")
	f.Int32VarP(&o.verbosity, "v", "v", o.verbosity, "kube-proxy's flag: from 4 on, --log-level debug")
	f.StringVar(&o.loggingFormat, "logging-format", o.loggingFormat, "kube-proxy's flag: the same as --log-format")
}

func (o *options) validateLog(c *complaints) {
	c.oneOf("log-format", o.logFormat, "text", "json")
	c.oneOf("logging-format", o.loggingFormat, "text", "json")
	if !o.given("log-format") && o.given("logging-format") {
		o.logFormat = o.loggingFormat
	}
	if !o.given("log-level") && o.verbosity >= debugVerbosity {
		o.logLevel = "debug"
	}
}

// logger returns the log, with what there was to say about the options already in it.
func (o *options) logger() (*logrus.Entry, error) {
	log := logrus.New()
	level, err := logrus.ParseLevel(o.logLevel)
	if err != nil {
		return nil, fmt.Errorf("--log-level: %w", err)
	}
	log.SetLevel(level)
	if o.logFormat == "json" {
		log.SetFormatter(&logrus.JSONFormatter{})
	} else {
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true})
	}
	entry := logrus.NewEntry(log)
	o.logNotes(entry)
	return entry, nil
}
