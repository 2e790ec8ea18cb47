package iptables

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// fault is why an iptables program failed.
type fault int

const (
	faultOther fault = iota // something in the input, as far as we know
	faultLocked
	faultPermission
	faultMissingProgram
	faultMissingTable
	faultCancelled
)

// toolError is the failure of one iptables program.
type toolError struct {
	action string // "writing IPv4 rules"
	advice string // what to do about it; may be empty
	stderr string
	fault  fault
	err    error
}

func (e *toolError) Error() string {
	text := fmt.Sprintf("%s: %v", e.action, e.err)
	if e.stderr != "" {
		text += ": " + e.stderr
	}
	if e.advice != "" {
		text += "; " + e.advice
	}
	return text
}

func (e *toolError) Unwrap() error { return e.err }

// blamesInput reports whether err may be due to a rule, so that looking for it makes sense.
func blamesInput(err error) bool {
	var e *toolError
	return errors.As(err, &e) && e.fault == faultOther
}

// blamesTable reports whether err says that the kernel has no such table.
func blamesTable(err error) bool {
	var e *toolError
	return errors.As(err, &e) && e.fault == faultMissingTable
}

// Passing reports whether an error of [New] may go away by itself: another program held the lock all the while, or the
// caller gave up. Others tell what this node, or this process, lacks.
func Passing(err error) bool {
	switch e := err.(type) {
	case nil:
		return false
	case *toolError:
		return e.fault == faultLocked || e.fault == faultCancelled
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), Passing)
	}
	return Passing(errors.Unwrap(err))
}

// Cause returns the first reason that an error of [New] or of [FamilyStats] gives, without advice and without whatever was
// tried next: for whoever does without iptables then.
func Cause(err error) string {
	var tool *toolError
	if errors.As(err, &tool) {
		return (&toolError{action: tool.action, err: tool.err, stderr: tool.stderr}).Error()
	}
	var program *exec.Error
	if errors.As(err, &program) {
		return program.Error()
	}
	return err.Error()
}

// newToolError classifies a failure. This is the only place that reads messages of the iptables programs; the phrases
// have been the same from 1.6 to 1.8.11, and missing one costs the advice and some needless bisecting, nothing else.
// Exit status 4 alone does not mean a held lock: iptables-nft also uses it when the kernel refuses a change.
func newToolError(action, stderr string, err error) error {
	e := &toolError{action: action, stderr: firstLines(stderr), err: err}
	says := func(phrases ...string) bool {
		for _, p := range phrases {
			if strings.Contains(stderr, p) {
				return true
			}
		}
		return false
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		e.fault = faultCancelled
	case errors.Is(err, exec.ErrNotFound):
		e.fault = faultMissingProgram
		e.advice = "install iptables, or run with --interception=local or none"
	case exitCode(err) == 4 && says("xtables lock"):
		e.fault = faultLocked
		e.advice = "another program held the lock /run/xtables.lock all the while; it will be tried again"
	case says("Permission denied", "Operation not permitted", "you must be root"):
		e.fault = faultPermission
		e.advice = "run as root or with CAP_NET_ADMIN and CAP_NET_RAW, or with --interception=local or none"
	case says("Table does not exist", "can't initialize", "Could not fetch rule set generation id", "Protocol not supported",
		"Failed to initialize nft", "unable to initialize table"):
		e.fault = faultMissingTable
		e.advice = "the kernel lacks this table, or its module is not loaded, or this needs root: try root, another " +
			"--iptables-mode, or --interception=local"
	case says("missing kernel module", "Couldn't load match", "Couldn't load target", "No chain/target/match by that name"):
		e.advice = "a match or target may be missing from the kernel or from the iptables installation"
	}
	return e
}

func exitCode(err error) int {
	var e interface{ ExitCode() int }
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	return -1
}

// firstLines keeps the part of a message that says what is wrong; what follows is the hint to read the manual.
func firstLines(stderr string) string {
	var kept []string
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "Try `") || strings.HasPrefix(line, "#") {
			continue
		}
		if kept = append(kept, line); len(kept) == 3 {
			break
		}
	}
	return strings.Join(kept, ": ")
}
