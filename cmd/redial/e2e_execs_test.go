package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
)

// execs counts the runs of iptables programs, of whatever name, by standing in front of them on PATH.
type execs struct {
	t    *testing.T
	path string // for the environment of the process to be watched
	log  string
}

func watchExecs(t *testing.T) *execs {
	t.Helper()
	dir := t.TempDir()
	e := &execs{t: t, path: dir + ":" + os.Getenv("PATH"), log: filepath.Join(dir, "log")}
	require.NoError(t, os.WriteFile(e.log, nil, 0o644))
	programs, err := filepath.Glob("/usr/sbin/*tables*")
	require.NoError(t, err)
	for _, program := range programs {
		// One write of one line to a file opened for appending: lines of processes running at once do not mix.
		script := fmt.Sprintf("#!/bin/sh\necho \"%s $*\" >>%s\nexec %s \"$@\"\n", filepath.Base(program), e.log, program)
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(program)), []byte(script), 0o755))
	}
	return e
}

// since returns the runs after the first n, those of restore programs apart from others.
func (e *execs) since(n int) (restores, others []string) {
	e.t.Helper()
	for _, line := range e.all()[n:] {
		if strings.HasSuffix(strings.Fields(line)[0], "-restore") {
			restores = append(restores, line)
		} else {
			others = append(others, line)
		}
	}
	return restores, others
}

func (e *execs) all() []string {
	e.t.Helper()
	b, err := os.ReadFile(e.log)
	require.NoError(e.t, err)
	return strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' })
}

// perFamily counts restores by program, so by family.
func perFamily(restores []string) map[string]int {
	n := map[string]int{}
	for _, line := range restores {
		n[strings.Fields(line)[0]]++
	}
	return n
}

const services200 = 200

// dualStack is Service number i: four endpoints in each family, of which the last ones are numbered from.
func dualStack(i, from int) string {
	var v4, v6 []string
	for e := range 4 {
		v4 = append(v4, fmt.Sprintf("198.19.%d.%d", i, from+e))
		v6 = append(v6, fmt.Sprintf("2001:db8:e:%d::%d", i, from+e))
	}
	name := fmt.Sprintf("s%d", i)
	return manifests(
		service(name, fmt.Sprintf("{type: NodePort, clusterIPs: [198.18.101.%d, \"2001:db8:5::%d\"], ports: [{port: 80, nodePort: %d}]}", i, i, 30000+i)),
		endpoints(name, "[{port: 8080}]", v4...), endpoints(name, "[{port: 8080}]", v6...))
}

func TestRestoresPerSync(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		good := addBackend(t, node, "good", 1)
		e := watchExecs(t)
		dir := t.TempDir()
		for i := range services200 {
			writeFile(t, filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), dualStack(i, 10))
		}
		r := newInstance(t, dir, "--iptables-sync-period=1h") // looks at the rules are execs, too
		r.cmd.Env = append(r.cmd.Env, "PATH="+e.path)
		r.start()
		s := r.await("200 Services steered", func(s *status) bool {
			n := 0
			for _, svc := range s.Services {
				for _, p := range svc.Ports {
					for _, f := range p.Fronts {
						n += len(f.VIPs)
					}
				}
			}
			return n == services200*4
		})
		require.EqualValues(t, 1, s.Sync.Syncs, "one sync for all that was there at the start")
		require.Equal(t, "nft", string(s.IPTables.Mode), "a fresh node has no rules")
		restores, _ := e.since(0)
		// Apart from the sync's, one per family tries out at the start whether the kernel has a nat table.
		assert.Equal(t, map[string]int{"iptables-nft-restore": 2, "ip6tables-nft-restore": 2}, perFamily(restores), "%v", restores)

		n := len(e.all())
		for i := range 50 {
			r.write(fmt.Sprintf("%d.yaml", i), dualStack(i, 20))
		}
		// One of them to a backend that exists, to see that the changes are in force and not only read.
		r.write("7.yaml", strings.NewReplacer("198.19.7.20", ip4(1), "198.19.7.21", ip4(1), "198.19.7.22", ip4(1), "198.19.7.23", ip4(1)).Replace(dualStack(7, 20)))
		r.await("50 endpoint changes", func(s *status) bool {
			for i := range 50 {
				want := fmt.Sprintf("198.19.%d.20:8080", i)
				if i == 7 {
					want = ip4(1) + ":8080"
				}
				if b := s.front(fmt.Sprintf("s%d", i)).Backends; len(b) == 0 || b[0].Address != want {
					return false
				}
			}
			return true
		})
		awaitAnswer(t, node, "198.18.101.7:80", good.name)
		assert.Empty(t, e.all()[n:], "programs run for changes of endpoints")
		assert.EqualValues(t, 1, r.status().Sync.Syncs)

		r.write("3.yaml", strings.ReplaceAll(dualStack(3, 10), "port: 80,", "port: 81,"))
		r.await("the port's change steered", func(s *status) bool {
			f := s.front("s3")
			return len(f.VIPs) > 0 && f.VIPs[0].Port == 81
		})
		restores, _ = e.since(n)
		assert.Equal(t, map[string]int{"iptables-nft-restore": 1, "ip6tables-nft-restore": 1}, perFamily(restores))

		n = len(e.all())
		r.write("new.yaml", web("new", "198.18.102.1", ip4(1)))
		r.awaitServed("new")
		restores, _ = e.since(n)
		assert.Equal(t, map[string]int{"iptables-nft-restore": 1}, perFamily(restores), "the family that has no part in it")
	})
}

func TestNoExecForZeroEndpoints(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		_, err := exec.LookPath("iptables-nft-restore")
		require.NoError(t, err)
		addBackend(t, node, "a", 1)
		client := addHost(t, node, "client", 9)
		e := watchExecs(t)
		dir := t.TempDir()
		svc := service("web", "{type: NodePort, clusterIP: "+clusterIP1+", ports: [{port: 80, nodePort: 30080}]}")
		writeFile(t, filepath.Join(dir, "svc.yaml"), svc)
		writeFile(t, filepath.Join(dir, "eps.yaml"), endpoints("web", "[{port: 8080}]"))
		r := newInstance(t, dir, "--iptables-sync-period=1h") // looks at the rules are execs, too
		r.cmd.Env = append(r.cmd.Env, "PATH="+e.path)
		r.start()
		r.await("steered though nothing serves", func(s *status) bool { return len(s.front("web").VIPs) == 2 })
		n := len(e.all())

		ways := []struct {
			from    *lab.Host
			address string
		}{
			{client, clusterIP1 + ":80"}, {client, "198.18.9.1:30080"},
			{node, clusterIP1 + ":80"}, {node, "127.0.0.1:30080"}, {node, "198.18.9.1:30080"},
		}
		for range 3 {
			for _, w := range ways {
				assertRefused(t, w.from, w.address)
			}
			r.write("eps.yaml", endpoints("web", "[{port: 8080}]", ip4(1)))
			r.awaitServed("web")
			for _, w := range ways {
				assertAnswers(t, w.from, w.address, "a")
			}
			r.write("eps.yaml", endpoints("web", "[{port: 8080}]"))
			r.await("clients refused", func(s *status) bool { return !s.front("web").Serving })
		}
		for _, w := range ways {
			assertRefused(t, w.from, w.address)
		}
		assert.Empty(t, e.all()[n:], "programs run for endpoints that come and go")
	})
}
