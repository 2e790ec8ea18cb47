package local

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// retry finds out whether a family that did not work does now.
func (f *family) retry() {
	if f.broken != nil {
		f.broken = f.probe()
	}
}

// probe reports whether routes of this family can be written.
func (f *family) probe() error {
	err := f.kernel.try(f.v6)
	if err == nil {
		return nil
	}
	advice := ""
	switch {
	case errors.Is(err, unix.EPERM):
		advice = ": it takes CAP_NET_ADMIN in this network namespace"
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EACCES), errors.Is(err, unix.ENODEV):
		advice = ": the kernel has the family turned off"
	}
	return fmt.Errorf("%s addresses cannot be made local: writing a route: %w%s", familyName(f.v6), err, advice)
}
