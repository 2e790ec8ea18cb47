package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const haproxyPort = servicePort + 10

// haproxyTCP is HAProxy with as many threads as there are processors, its default.
func haproxyTCP(n *network) (*system, error) {
	s := &system{name: "HAProxy", address: fmt.Sprintf("%s:%d", nodeIP, haproxyPort)}
	path, err := s.findHAProxy()
	if err != nil || s.absent != "" {
		return s, err
	}
	config := filepath.Join(n.dir, "haproxy.cfg")
	text := fmt.Sprintf(`global
	maxconn %d
defaults
	mode tcp
	option splice-auto
	timeout connect 5s
	timeout client 1h
	timeout server 1h
listen echo
	bind %s:%d
	server backend %s:%d
`, fileLimit()/3, nodeIP, haproxyPort, backendIP, backendPort)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	s.command = func() *exec.Cmd { return exec.Command(path, "-db", "-f", config) }
	return s, nil
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
