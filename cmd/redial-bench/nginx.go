package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// nginxUDP has one worker: a second one gets nothing to do.
func nginxUDP(n *network) (*system, error) {
	s := newSystem("nginx stream", []string{fmt.Sprintf("%s:%d", nodeIP, servicePort)})
	return s, s.nginx(n, "1", fmt.Sprintf("\tserver {\n\t\tlisten %s udp;\n\t\tproxy_pass %s:%d;\n\t\tproxy_timeout %s;\n\t}\n",
		s.address, backendIP, backendPort, idleTimeout))
}

// nginxTCP has a listener and an upstream for each frontend, all with the same backends.
func nginxTCP(n *network, name string, frontends, backends []string, workers string) (*system, error) {
	s := newSystem(name, frontends)
	var b strings.Builder
	for i, address := range frontends {
		fmt.Fprintf(&b, "\tupstream echo%d {\n", i)
		for _, backend := range withPort(backends, backendPort) {
			fmt.Fprintf(&b, "\t\tserver %s;\n", backend)
		}
		fmt.Fprintf(&b, "\t}\n\tserver {\n\t\tlisten %s backlog=4096;\n\t\tproxy_pass echo%d;\n\t\tproxy_timeout 1h;\n\t\t%s\n\t}\n", address, i,
			"proxy_half_close on; # or a client that has sent its FIN loses the answer")
	}
	return s, s.nginx(n, workers, b.String())
}

// nginx sets the command, or why the system is absent.
func (s *system) nginx(n *network, workers, stream string) error {
	path, load, err := s.findNginx()
	if err != nil || s.absent != "" {
		return err
	}
	if load != "" {
		load = "load_module " + load + ";\n"
	}
	config, err := writeConfig(n, s.name, fmt.Sprintf(`%sdaemon off;
user root;
pid %s;
worker_processes %s;
worker_rlimit_nofile %d;
events { worker_connections 65536; }
stream {
%s}
`, load, filepath.Join(n.dir, strings.ReplaceAll(s.name, " ", "-")+".pid"), workers, fileLimit(), stream))
	s.workers = true
	s.command = func() *exec.Cmd { return exec.Command(path, "-e", "stderr", "-p", n.dir, "-c", config) }
	return err
}

// findNginx sets the version, or why the system is absent, and returns the module to load, if any.
func (s *system) findNginx() (path, load string, err error) {
	if path, err = exec.LookPath("nginx"); err != nil {
		s.absent = "nginx is not installed (Debian: nginx and libnginx-mod-stream)"
		return "", "", nil
	}
	about, err := exec.Command(path, "-V").CombinedOutput()
	if err != nil {
		return "", "", fmt.Errorf("nginx -V: %w: %s", err, about)
	}
	s.version = nginxVersion(string(about))
	load, ok := streamModule(string(about))
	if ok && load != "" {
		if _, err := os.Stat(load); errors.Is(err, os.ErrNotExist) {
			ok = false
		}
	}
	if !ok {
		s.absent = s.version + " is without its stream module (Debian: libnginx-mod-stream)"
	}
	return path, load, nil
}

// nginxVersion returns "nginx/1.22.1" of what nginx -V prints.
func nginxVersion(about string) string {
	first, _, _ := strings.Cut(about, "\n")
	_, version, _ := strings.Cut(first, ": ")
	return strings.TrimSpace(version)
}

// streamModule tells from what nginx -V prints whether there is a stream module, and which file to load it from: none if
// it is built in.
func streamModule(about string) (load string, ok bool) {
	folder := "modules"
	for _, arg := range strings.Fields(about) {
		switch {
		case strings.HasPrefix(arg, "--modules-path="):
			folder = strings.TrimPrefix(arg, "--modules-path=")
		case arg == "--with-stream":
			return "", true
		case arg == "--with-stream=dynamic":
			ok = true
		}
	}
	if !ok {
		return "", false
	}
	return filepath.Join(folder, "ngx_stream_module.so"), true
}
