package main

import (
	"fmt"
	"os/exec"
	"strings"
)

const haproxyPort = servicePort + 10

// haproxyTCP is HAProxy with as many threads as it may use processors, its default, and as many connections as the
// limit of descriptors leaves it.
func haproxyTCP(n *network, name string, frontends, backends []string) (*system, error) {
	s := newSystem(name, frontends)
	path, err := s.findHAProxy()
	if err != nil || s.absent != "" {
		return s, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, `global
	maxconn %d
	maxpipes %d
defaults
	mode tcp
	option splice-auto
	timeout connect 5s
	timeout client 1h
	timeout server 1h
`, fileLimit()*42/100, fileLimit()/20)
	for i, address := range frontends {
		fmt.Fprintf(&b, "listen echo%d\n\tbind %s\n", i, address)
		for j, backend := range withPort(backends, backendPort) {
			fmt.Fprintf(&b, "\tserver backend%d %s\n", j, backend)
		}
	}
	config, err := writeConfig(n, name, b.String())
	s.command = func() *exec.Cmd { return exec.Command(path, "-db", "-f", config) }
	return s, err
}

// findHAProxy sets the version, or why the system is absent.
func (s *system) findHAProxy() (path string, err error) {
	if path, err = exec.LookPath("haproxy"); err != nil {
		s.absent = "haproxy is not installed"
		return "", nil
	}
	about, err := exec.Command(path, "-v").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("haproxy -v: %w: %s", err, about)
	}
	words := strings.Fields(string(about))
	s.version = strings.Join(words[:min(3, len(words))], " ")
	return path, nil
}
