package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// failoverSystems are those to compare over these backends, in the order of measuring. Each proxy is there as it is usually
// set up, and once more as it should be for backends that are near: it gives a silent one up after a quarter of a second.
func failoverSystems(n *network, o *failoverOptions, backends []string, port int) ([]*system, error) {
	var all []*system
	for _, make := range []func() (*system, error){
		func() (*system, error) { return failoverDNAT(n, backends, port) },
		func() (*system, error) {
			return failoverHAProxy(n, "HAProxy", "\ttimeout connect 5s\n\tretries 3\n\toption redispatch\n", backends)
		},
		func() (*system, error) {
			return failoverHAProxy(n, "HAProxy tuned", "\ttimeout connect 250ms\n\tretries 3\n\toption redispatch 1\n"+
				"\tdefault-server check inter 1s fall 1 rise 1 observe layer4 error-limit 3 on-error mark-down\n", backends)
		},
		func() (*system, error) { return failoverNginx(n, "nginx stream", "5s", backends) },
		func() (*system, error) { return failoverNginx(n, "nginx stream tuned", "250ms", backends) },
		func() (*system, error) { return failoverRedial(n, "redial", o.redial, backends) },
		func() (*system, error) {
			if o.before == "" {
				return nil, nil
			}
			return failoverRedial(n, "redial before", o.before, backends)
		},
	} {
		s, err := make()
		if err != nil {
			return nil, err
		}
		if s != nil {
			all = append(all, s)
		}
	}
	return all, nil
}

func failoverRedial(n *network, name, path string, backends []string) (*system, error) {
	s, err := redial(n, path, "tcp", backends...)
	if err != nil {
		return nil, err
	}
	if s.name = name; s.version != "" {
		s.version = name + ": " + s.version
	}
	return s, nil
}

// failoverDNAT is what kube-proxy would write for several backends.
func failoverDNAT(n *network, backends []string, port int) (*system, error) {
	s := &system{name: "kernel DNAT", address: fmt.Sprintf("%s:%d", dnatIP, port)}
	if out, err := n.node.Output("iptables", "--version"); err == nil {
		s.version = strings.TrimSpace(out)
	}
	for i, b := range backends {
		args := []string{"-t", "nat", "-A", "PREROUTING", "-d", dnatIP, "-p", "tcp", "--dport", fmt.Sprint(port)}
		if left := len(backends) - i; left > 1 {
			args = append(args, "-m", "statistic", "--mode", "random", "--probability", fmt.Sprintf("%.8f", 1/float64(left)))
		}
		args = append(args, "-j", "DNAT", "--to-destination", fmt.Sprintf("%s:%d", b, backendPort))
		if _, err := n.node.Output("iptables", args...); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func failoverHAProxy(n *network, name, more string, backends []string) (*system, error) {
	s := &system{name: name, address: fmt.Sprintf("%s:%d", nodeIP, haproxyPort)}
	path, err := s.findHAProxy()
	if err != nil || s.absent != "" {
		return s, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, `global
	maxconn %d
defaults
	mode tcp
	option splice-auto
	timeout client 1h
	timeout server 1h
listen echo
	bind %s:%d
	balance roundrobin
%s`, fileLimit()/3, nodeIP, haproxyPort, more)
	for i, address := range backends {
		fmt.Fprintf(&b, "\tserver backend%d %s:%d\n", i, address, backendPort)
	}
	config, err := writeConfig(n, name, b.String())
	s.command = func() *exec.Cmd { return exec.Command(path, "-db", "-f", config) }
	return s, err
}

func failoverNginx(n *network, name, connectTimeout string, backends []string) (*system, error) {
	s := &system{name: name, address: fmt.Sprintf("%s:%d", nodeIP, servicePort)}
	path, load, err := s.findNginx()
	if err != nil || s.absent != "" {
		return s, err
	}
	var b strings.Builder
	if load != "" {
		fmt.Fprintf(&b, "load_module %s;\n", load)
	}
	fmt.Fprintf(&b, `daemon off;
user root;
pid %s/nginx.pid;
worker_processes auto;
worker_rlimit_nofile %d;
events { worker_connections 65536; }
stream {
	upstream echo {
		zone echo 256k; # what one worker learns, all know
`, n.dir, fileLimit())
	for _, address := range backends {
		fmt.Fprintf(&b, "\t\tserver %s:%d;\n", address, backendPort)
	}
	fmt.Fprintf(&b, `	}
	server {
		listen %s:%d backlog=65535; # 511 if it is not given, too few for many at once
		proxy_pass echo;
		proxy_timeout 3600s;
		proxy_half_close on; # or a client that has sent its FIN loses the answer
		proxy_next_upstream on;
		proxy_connect_timeout %s;
	}
}
`, nodeIP, servicePort, connectTimeout)
	config, err := writeConfig(n, name, b.String())
	s.workers = true
	s.command = func() *exec.Cmd { return exec.Command(path, "-e", "stderr", "-p", n.dir, "-c", config) }
	return s, err
}

func writeConfig(n *network, name, text string) (path string, err error) {
	path = filepath.Join(n.dir, strings.ReplaceAll(name, " ", "-")+".conf")
	return path, os.WriteFile(path, []byte(text), 0o600)
}
