package main

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// steeringLock is an abstract unix socket. There can be one of the name in each network namespace, which is just what the
// rules belong to, and the kernel frees it when its process ends.
const steeringLock = "@redial-iptables"

// lockSteering makes this process the only one that writes redial's rules in this network namespace. Two would overwrite
// each other's for ever. release is never nil.
func lockSteering() (release func(), err error) {
	release = func() {}
	l, err := net.Listen("unix", steeringLock)
	if errors.Is(err, unix.EADDRINUSE) {
		return release, errors.New("redial is running on this node and steers its traffic: stop it first (redial status shows its pid)")
	}
	if err != nil {
		return release, fmt.Errorf("locking the rules: %w", err)
	}
	return func() { l.Close() }, nil
}
