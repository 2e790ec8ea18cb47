package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
)

// Whichever way a manifest is changed, the change takes effect.
func TestWaysToChangeAManifest(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		addBackend(t, node, "b", 2)
		dir := t.TempDir()
		// As the kubelet mounts a ConfigMap: the files are links into ..data, which is a link to the version in force.
		version := func(name, content string) {
			require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, name, "web.yaml"), []byte(content), 0o644))
			require.NoError(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
			require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		}
		version("..v1", web("web", clusterIP1, ip4(1)))
		require.NoError(t, os.Symlink("..data/web.yaml", filepath.Join(dir, "web.yaml")))
		r := startIn(t, dir)
		r.awaitServed("web")
		assertAnswers(t, node, clusterIP1+":80", "a")

		version("..v2", web("web", clusterIP1, ip4(2)))
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "..v1")))
		awaitAnswer(t, node, clusterIP1+":80", "b")

		// A subfolder that appears later, then an edit in place, a rename over it, JSON, and deletion.
		sub := filepath.Join(dir, "sub")
		require.NoError(t, os.Mkdir(sub, 0o755))
		path := filepath.Join(sub, "other.yml")
		writeFile(t, path, web("other", "198.18.100.2", ip4(1)))
		r.awaitServed("other")
		assertAnswers(t, node, "198.18.100.2:80", "a")
		require.NoError(t, os.WriteFile(path, []byte(web("other", "198.18.100.2", ip4(2))), 0o644))
		awaitAnswer(t, node, "198.18.100.2:80", "b")
		writeFile(t, path, web("other", "198.18.100.2", ip4(1)))
		awaitAnswer(t, node, "198.18.100.2:80", "a")
		writeFile(t, filepath.Join(sub, "third.json"), `{"apiVersion":"v1","kind":"List","items":[
			{"apiVersion":"v1","kind":"Service","metadata":{"name":"third"},"spec":{"clusterIP":"198.18.100.3","ports":[{"port":80}]}},
			{"apiVersion":"v1","kind":"Endpoints","metadata":{"name":"third"},"subsets":[{"addresses":[{"ip":"198.18.2.2"}],"ports":[{"port":8080}]}]}]}`)
		r.awaitServed("third")
		assertAnswers(t, node, "198.18.100.3:80", "b")
		require.NoError(t, os.RemoveAll(sub))
		r.await("sub gone", func(s *status) bool { return len(s.Services) == 1 })
		assertAnswers(t, node, clusterIP1+":80", "b")
	})
}

func TestBrokenEditKeepsTheLastGoodVersion(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		addBackend(t, node, "b", 2)
		r := startRedial(t, web("web", clusterIP1, ip4(1)))
		r.awaitServed("web")

		broken := strings.Replace(web("web", clusterIP1, ip4(2)), "addressType", "adressType", 1)
		r.write("all.yaml", broken)
		r.await("the problem", func(s *status) bool { return len(s.Problems) == 1 })
		assertAnswers(t, node, clusterIP1+":80", "a")
		out, err := runRedial("status", "--admin-socket", r.socket)
		require.NoError(t, err, out)
		assert.Contains(t, out, "PROBLEMS")
		assert.Contains(t, out, filepath.Join(r.dir, "all.yaml")+", document 2 (EndpointSlice default/web-ipv4), last good version in force: ")
		assert.Contains(t, out, `"adressType"`)

		r.write("all.yaml", "{{{")
		r.await("another problem", func(s *status) bool { return len(s.Problems) == 1 && s.Problems[0].Document == 1 })
		assertAnswers(t, node, clusterIP1+":80", "a")
		require.NoError(t, os.WriteFile(filepath.Join(r.dir, "all.yaml"), nil, 0o644))
		r.await("no Service", func(s *status) bool { return len(s.Services) == 0 && len(s.Problems) == 0 })

		r.write("all.yaml", web("web", clusterIP1, ip4(2)))
		r.awaitServed("web")
		assertAnswers(t, node, clusterIP1+":80", "b")
	})
}
