package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
)

// With few file descriptors clients wait for one another, in the kernel's queue; none is turned away.
func TestFewFileDescriptors(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		client := addHost(t, node, "client", 9)
		dir := t.TempDir()
		writeFile(t, dir+"/all.yaml", web("web", clusterIP1, ip4(1)))
		r := newInstance(t, dir)
		self, err := os.Executable()
		require.NoError(t, err)
		limited := exec.Command("sh", append([]string{"-c", `ulimit -n 128 && exec "$0" "$@"`, self}, r.cmd.Args[1:]...)...)
		limited.Env, limited.Stderr = r.cmd.Env, r.cmd.Stderr
		r.cmd = limited
		r.start()
		began := time.Now()
		s := r.awaitServed("web")
		assert.Equal(t, 128, s.FDLimit)

		for round := range 2 {
			const n = 200
			calls := make([]*call, n)
			for i := range calls {
				calls[i], err = connect(client, clusterIP1+":80")
				require.NoError(t, err)
			}
			r.await("the limit reached", func(s *status) bool { return s.front("web").Stats.FDWaits > uint64(round) })
			assert.LessOrEqual(t, countFDs(t, r), 128)
			var running sync.WaitGroup
			errs := make([]error, n)
			for i, c := range calls {
				running.Go(func() {
					defer c.Close()
					c.SetDeadline(time.Now().Add(testPatience))
					line, err := c.lines.ReadString('\n')
					if err == nil && line != "a\n" {
						err = fmt.Errorf("heard %q", line)
					}
					errs[i] = err
				})
			}
			running.Wait()
			for _, err := range errs {
				require.NoError(t, err)
			}
		}
		s = r.await("all over", func(s *status) bool { return s.front("web").Stats.Active == 0 })
		assert.EqualValues(t, 400, s.front("web").Stats.Connected)
		assert.Zero(t, s.front("web").Stats.Failed)
		seconds := int(time.Since(began)/time.Second) + 1
		assert.LessOrEqual(t, strings.Count(r.log.String(), "file descriptor"), seconds, "lines about it:\n%s", r.log)
	})
}
