package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"redial/config/kubeproxy"
)

// load puts what the configuration file says, if there is one, in the place of flags. It comes before validate, which then
// does not care where a value is from.
func (o *options) load() error {
	o.noteIgnored()
	if o.configFile == "" {
		return nil
	}
	content, err := os.ReadFile(o.configFile)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	o.content, o.commandLine = content, changed(o.flags)
	return o.use(content)
}

// use has the content of the file take the place of flags.
func (o *options) use(content []byte) error {
	c, warnings, err := kubeproxy.Decode(content)
	if err != nil {
		return fmt.Errorf("--config %s: %w", o.configFile, err)
	}
	for _, w := range warnings {
		o.note(logrus.WarnLevel, "configuration file: "+w, logrus.Fields{"file": o.configFile})
	}
	if err := o.apply(c); err != nil {
		return fmt.Errorf("--config %s: %w", o.configFile, err)
	}
	return nil
}

// usable returns why a proxy that is started with the same command line could not start with this content of the file.
func (o *options) usable(content []byte) error {
	again := defaultOptions()
	again.addFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	for _, f := range o.commandLine {
		if err := again.flags.Set(f[0], f[1]); err != nil {
			return err
		}
	}
	if err := again.use(content); err != nil {
		return err
	}
	return again.validate()
}

// changed returns the flags that have been set, as pairs of name and value.
func changed(flags *pflag.FlagSet) (all [][2]string) {
	flags.Visit(func(f *pflag.Flag) {
		all = append(all, [2]string{f.Name, textOf(f)})
	})
	return all
}

// textOf is what a flag could have been set to on the command line.
func textOf(f *pflag.Flag) string {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return strings.Join(list.GetSlice(), ",")
	}
	return f.Value.String()
}

func (o *options) apply(c *kubeproxy.Config) error {
	precedence := kubeproxy.Flags()
	// These two are other spellings of flags that the file has a field for.
	precedence["healthz-port"], precedence["metrics-port"] = kubeproxy.FileOnly, kubeproxy.FileOnly
	var overruled []string
	o.flags.VisitAll(func(f *pflag.Flag) {
		if p, ok := precedence[f.Name]; ok && p == kubeproxy.FileOnly && f.Changed {
			overruled = append(overruled, "--"+f.Name)
			reset(f)
		}
	})
	if len(overruled) > 0 {
		o.note(logrus.WarnLevel, "with a configuration file these flags do not count, even where it is silent: put them into the file",
			logrus.Fields{"flags": strings.Join(overruled, ","), "file": o.configFile})
	}
	var errs []error
	meaningless := c.Meaningless()
	for _, s := range c.Settings() {
		f := o.flags.Lookup(s.Flag)
		if f == nil {
			errs = append(errs, fmt.Errorf("%s: there is no flag --%s", s.Field, s.Flag))
			continue
		}
		if precedence[s.Flag] == kubeproxy.FlagFirst && f.Changed {
			continue
		}
		if f.Usage == ignoredUsage {
			if s.Value != f.DefValue {
				meaningless = append(meaningless, s.Field)
			}
			continue
		}
		if err := o.flags.Set(s.Flag, s.Value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.Field, err))
		}
	}
	if len(meaningless) > 0 {
		o.note(logrus.InfoLevel, "these fields of the configuration file mean nothing here", logrus.Fields{"fields": strings.Join(meaningless, ","), "file": o.configFile})
	}
	return errors.Join(errs...)
}

// reset takes a flag back.
func reset(f *pflag.Flag) {
	// The default's text is no value that a list can be set to. No list has another default than none.
	if list, ok := f.Value.(pflag.SliceValue); ok {
		_ = list.Replace(nil)
	} else {
		_ = f.Value.Set(f.DefValue)
	}
	f.Changed = false
}

// effective returns the options as a configuration file has them. lost are the flags that were given and have no place in
// one.
func (o *options) effective() (c *kubeproxy.Config, lost []string, err error) {
	c = &kubeproxy.Config{}
	precedence := kubeproxy.Flags()
	var errs []error
	o.flags.VisitAll(func(f *pflag.Flag) {
		value := textOf(f)
		kept := false
		// What kube-proxy has no field for is written only if it has to be, so that kube-proxy can read the file too.
		if _, known := precedence[f.Name]; known && (f.Changed || f.Name != "udp-timeout") {
			var err error
			if kept, err = c.Set(f.Name, value); err != nil {
				errs = append(errs, err)
			}
		}
		if f.Changed && !kept && value != f.DefValue && f.Name != "config" && f.Name != "write-config-to" {
			lost = append(lost, "--"+f.Name)
		}
	})
	return c, lost, errors.Join(errs...)
}

// configz is the configuration in force, in the shape that kube-proxy's /configz has.
func (o *options) configz() func() any {
	return func() any {
		c, _, err := o.effective()
		if err != nil {
			return map[string]string{"error": err.Error()}
		}
		return map[string]any{"kubeproxy.config.k8s.io": c}
	}
}

// writeConfig writes the options as a configuration file. lost are the flags that were given and have no place in one.
func (o *options) writeConfig() (lost []string, err error) {
	c, lost, err := o.effective()
	if err != nil {
		return nil, err
	}
	content, err := c.Encode()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(o.writeConfigTo, content, 0o644); err != nil {
		return nil, fmt.Errorf("--write-config-to: %w", err)
	}
	return lost, nil
}
