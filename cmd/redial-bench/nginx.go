package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// nginxStream is nginx with a stream server: one worker for UDP, where a second one gets nothing to do, and as many as
// there are processors for TCP.
func nginxStream(n *network, protocol string) (*system, error) {
	s := &system{name: "nginx stream", address: fmt.Sprintf("%s:%d", nodeIP, servicePort)}
	path, load, err := s.findNginx()
	if err != nil || s.absent != "" {
		return s, err
	}
	config := filepath.Join(n.dir, "nginx.conf")
	if err := os.WriteFile(config, []byte(nginxConfig(load, n.dir, protocol)), 0o600); err != nil {
		return nil, err
	}
	s.workers = true
	s.command = func() *exec.Cmd { return exec.Command(path, "-e", "stderr", "-p", n.dir, "-c", config) }
	return s, nil
}

// findNginx sets the version, or why the system is absent, and returns the module to load, if any.
func (s *system) findNginx() (path, load string, err error) {
	if path, err = exec.LookPath("nginx"); err != nil {
		s.absent = "nginx is not installed (Debian: nginx-light and libnginx-mod-stream)"
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

func nginxConfig(load, dir, protocol string) string {
	var b strings.Builder
	if load != "" {
		fmt.Fprintf(&b, "load_module %s;\n", load)
	}
	listen, workers, timeout, more := " udp", "1", int(idleTimeout.Seconds()), ""
	if protocol == "tcp" {
		listen, workers, timeout = "", "auto", 3600
		more = "\t\tproxy_half_close on; # or a client that has sent its FIN loses the answer\n"
	}
	fmt.Fprintf(&b, `daemon off;
user root;
pid %s/nginx.pid;
worker_processes %s;
worker_rlimit_nofile %d;
events { worker_connections 65536; }
stream {
	server {
		listen %s:%d%s;
		proxy_pass %s:%d;
		proxy_timeout %ds;
%s	}
}
`, dir, workers, fileLimit(), nodeIP, servicePort, listen, backendIP, backendPort, timeout, more)
	return b.String()
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
