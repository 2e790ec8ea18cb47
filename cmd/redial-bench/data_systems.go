package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// layout is what the systems serve while some of the loads are measured.
type layout struct {
	services, backends int
	cores              []int // how many processors the systems may use, each one for each number; none: as many as there are
}

// systems are those to compare, in the order of measuring.
func (l layout) systems(n *network, o *dataOptions) ([]*system, error) {
	backends := podAddresses(l.backends)
	var all []*system
	var errs []error
	add := func(s *system, err error) {
		all, errs = append(all, s), append(errs, err)
	}
	if len(l.cores) == 0 {
		add(dnat(n, "kernel DNAT", "tcp", n.virtualIPs(l.services), backends))
		add(nginxTCP(n, "nginx stream", n.frontends(l.services), backends, "auto"))
		add(haproxyTCP(n, "HAProxy", n.frontends(l.services), backends))
		add(plainTCP("io.Copy", n.frontends(l.services), backends))
		add(redialServing(n, "redial", o.redial, "tcp", n.virtualIPs(l.services), backends))
		if l.services == 1 {
			add(bare(n, "redial, no rules", o.redial, backends))
		}
		if l.services == 1 && o.before != "" {
			add(bare(n, "before, no rules", o.before, backends))
		}
	}
	for _, make := range []func(of string, cores int) (*system, error){
		func(of string, cores int) (*system, error) {
			return nginxTCP(n, "nginx stream"+of, n.frontends(l.services), backends, fmt.Sprint(cores))
		},
		func(of string, _ int) (*system, error) {
			return haproxyTCP(n, "HAProxy"+of, n.frontends(l.services), backends)
		},
		func(of string, _ int) (*system, error) {
			return plainTCP("io.Copy"+of, n.frontends(l.services), backends)
		},
		func(of string, _ int) (*system, error) {
			return bare(n, "redial, no rules"+of, o.redial, backends)
		},
	} {
		for _, cores := range l.cores {
			s, err := make(ofCores(cores), cores)
			if err == nil {
				s.confine(cores)
			}
			add(s, err)
		}
	}
	return all, errors.Join(errs...)
}

func ofCores(cores int) string {
	if cores == 1 {
		return ", 1 core"
	}
	return fmt.Sprintf(", %d cores", cores)
}

// confine lets the system run on the first processors only. HAProxy and the Go runtime then start as many threads; nginx
// has to be told.
func (s *system) confine(cores int) {
	s.cores = cores
	if s.absent != "" {
		return
	}
	make := s.command
	s.command = func() *exec.Cmd {
		cmd := make()
		confined := exec.Command("taskset", append([]string{"--cpu-list", fmt.Sprintf("0-%d", cores-1)}, cmd.Args...)...)
		confined.Stderr = cmd.Stderr
		return confined
	}
}

// bare is redial without rules, addressed directly, as nginx and HAProxy are.
func bare(n *network, name, path string, backends []string) (*system, error) {
	frontends := n.frontends(1)
	s := newSystem(name, frontends)
	manifests, err := writeManifests(n, name, "tcp", []string{clusterIP}, backends)
	address, port, _ := strings.Cut(frontends[0], ":")
	s.command = func() *exec.Cmd {
		return exec.Command(path, "--manifests", manifests, "--admin-socket", filepath.Join(n.dir, name+".sock"),
			"--drain-timeout", "0s", "--interception", "none", "--proxy-bind-address", address, "--proxy-port-range", port)
	}
	return s, err
}

// plainTCP is the proxy of plain-proxy.
func plainTCP(name string, frontends, backends []string) (*system, error) {
	self, err := os.Executable()
	s := newSystem(name, frontends)
	s.command = func() *exec.Cmd {
		return exec.Command(self, "plain-proxy", "--listen", strings.Join(frontends, ","), "--backends", strings.Join(withPort(backends, backendPort), ","))
	}
	return s, err
}
