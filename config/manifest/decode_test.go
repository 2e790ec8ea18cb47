package manifest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDecode(t *testing.T) {
	web, webSlice := service("web", "10.0.0.1"), slice("web-1", "web", "127.0.0.1")
	json := `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"clusterIP":"10.0.0.1","ports":[{"port":80}]}}`
	indent := func(s string) string { return "- " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n  ") + "\n" }
	for _, c := range []struct {
		name, file, data string
		want             []string // "document object", or "document object: problem"
		skipped          int
	}{
		{name: "empty"},
		{name: "comments", data: "# nothing\n---\n# here\n"},
		{name: "null", data: "null\n---\n~\n"},
		{name: "three kinds", data: web + "---\n" + webSlice + "---\napiVersion: v1\nkind: Endpoints\nmetadata: {name: web}\nsubsets: [{addresses: [{ip: 10.0.0.1}], ports: [{port: 80}]}]\n",
			want: []string{"1 Service default/web", "2 EndpointSlice default/web-1", "3 Endpoints default/web"}},
		{name: "a namespace", data: strings.Replace(web, "  name: web", "  name: web\n  namespace: shop", 1), want: []string{"1 Service shop/web"}},
		{name: "byte order mark and CRLF", data: "\xef\xbb\xbf" + strings.ReplaceAll(web+"--- # next\n"+webSlice, "\n", "\r\n"),
			want: []string{"1 Service default/web", "2 EndpointSlice default/web-1"}},
		{name: "JSON", file: "a.json", data: json + "\n" + json, want: []string{"1 Service default/web", "2 Service default/web"}},
		{name: "JSON in YAML", data: strings.ReplaceAll(json, ",", ",\n\t") + "\n---\n" + web, want: []string{"1 Service default/web", "2 Service default/web"}},
		{name: "YAML in JSON", file: "a.json", data: web, want: []string{"1 : line 1: invalid character 'a'"}},
		{name: "JSON breaking off", file: "a.json", data: json + "\n{\"kind\":", want: []string{"1 Service default/web", "2 : line 1: unexpected EOF"}},
		{name: "other kinds", data: "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n---\napiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: x}\nspec: {template: 1}\n---\n" + web,
			want: []string{"3 Service default/web"}, skipped: 2},
		{name: "List", data: "apiVersion: v1\nkind: List\nmetadata: {resourceVersion: ''}\nitems:\n" + indent(web) + indent(webSlice) + "- {apiVersion: v1, kind: Secret, metadata: {name: s}}\n",
			want: []string{"1 Service default/web", "1 EndpointSlice default/web-1"}, skipped: 1},
		{name: "typed List whose items do not say what they are", file: "a.json",
			data: `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSliceList","items":[{"metadata":{"name":"a","labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4","endpoints":[]}]}`,
			want: []string{"1 EndpointSlice default/a"}},
		{name: "ServiceList", data: "apiVersion: v1\nkind: ServiceList\nitems: [{metadata: {name: a}}, {metadata: {name: b}, spec: {prots: []}}]\n",
			want: []string{"1 Service default/a", `1 Service default/b: items[1]: unknown field "spec.prots"`}},
		{name: "EndpointsList", data: "apiVersion: v1\nkind: EndpointsList\nitems: [{metadata: {name: a}}]\n", want: []string{"1 Endpoints default/a"}},
		{name: "List with an unknown field", data: "apiVersion: v1\nkind: List\nitem: []\nitems:\n" + indent(web),
			want: []string{`1 : unknown field "item"`, "1 Service default/web"}},
		{name: "List that is none", data: "apiVersion: v1\nkind: List\nitems: 5\n", want: []string{"1 : items: number where"}},
		{name: "Lists without end", file: "a.json", data: strings.Repeat(`{"apiVersion":"v1","kind":"List","items":[`, 50) + strings.Repeat("]}", 50),
			want: []string{"1 : items[0].items[0].items[0].items[0]: lists are nested too deeply"}},

		{name: "unknown field", data: strings.Replace(web, "ports:", "prots:", 1), want: []string{`1 Service default/web: unknown field "spec.prots"`}},
		{name: "unknown field in a list", data: strings.Replace(web, "port: 80", "prot: 80", 1), want: []string{`1 Service default/web: unknown field "spec.ports[0].prot"`}},
		{name: "field in other letters", data: strings.Replace(web, "clusterIP", "clusterip", 1), want: []string{`1 Service default/web: unknown field "spec.clusterip"`}},
		{name: "wrong type", data: strings.Replace(web, "port: 80", "port: eighty", 1), want: []string{"1 Service default/web: spec.ports[0].port: string where a value of type int32 is wanted"}},
		{name: "wrong type of the second", data: web + "  - {name: b, port: '81'}\n", want: []string{"1 Service default/web: spec.ports[1].port: string where"}},
		{name: "number too large", data: strings.Replace(web, "port: 80", "port: 8000000000", 1), want: []string{"1 Service default/web: spec.ports[0].port: number 8000000000 where"}},
		{name: "wrong type of a type with its own decoder", data: strings.Replace(web, "port: 80", "port: 80\n    targetPort: [1]", 1), want: []string{"1 Service default/web: spec.ports[0].targetPort: array"}},
		{name: "bad time", data: strings.Replace(web, "  name: web", "  name: web\n  creationTimestamp: yesterday", 1), want: []string{"1 Service default/web: metadata.creationTimestamp: parsing time"}},
		{name: "wrong type in a map", data: strings.Replace(web, "  name: web", "  name: web\n  labels: {a: b, c: 5}", 1), want: []string{"1 Service default/web: metadata.labels[c]: number"}},
		{name: "duplicate key", data: web + "  clusterIP: 10.0.0.2\n", want: []string{`1 : yaml: unmarshal errors: line 10: key "clusterIP" already set in map`}},
		{name: "duplicate key in JSON", file: "a.json", data: strings.Replace(json, `{"clusterIP"`, `{"clusterIP":"10.0.0.2","clusterIP"`, 1), want: []string{`1 Service default/web: duplicate field "spec.clusterIP"`}},
		{name: "broken YAML names the line of the file", data: web + "---\n" + web + "  x: [\n", want: []string{"1 Service default/web", "2 : yaml: line 2"}},
		{name: "no name", data: strings.Replace(web, "  name: web", "  namespace: x", 1), want: []string{"1 : metadata.name is required"}},
		{name: "a name that is none", data: strings.Replace(web, "name: web", "name: Web_1", 1), want: []string{`1 : metadata.name "Web_1"`}},
		{name: "a namespace that is none", data: strings.Replace(web, "  name: web", "  name: web\n  namespace: a/b", 1), want: []string{`1 : metadata.namespace "a/b"`}},
		{name: "name of another type", data: strings.Replace(web, "name: web", "name: 5", 1), want: []string{"1 : metadata.name: number"}},
		{name: "no object", data: "hello\n---\n[1, 2]\n---\na: 1\n", want: []string{"1 : string where", "2 : array where", "3 : apiVersion and kind are required"}},
		{name: "old version", data: strings.Replace(webSlice, "k8s.io/v1", "k8s.io/v1beta1", 1), want: []string{`1 : apiVersion "discovery.k8s.io/v1beta1", kind "EndpointSlice" is not used: write apiVersion "discovery.k8s.io/v1"`}},
		{name: "slice in the core group", data: strings.Replace(webSlice, "discovery.k8s.io/v1", "v1", 1), want: []string{`1 : apiVersion "v1", kind "EndpointSlice" is not used`}},
		{name: "kind in other letters", data: strings.Replace(web, "Service", "service", 1), want: []string{`1 : apiVersion "v1", kind "service" is not used`}},
		{name: "slice without its label", data: strings.Replace(webSlice, "kubernetes.io/service-name", "app", 1), want: []string{"1 EndpointSlice default/web-1: metadata.labels lacks kubernetes.io/service-name"}},
		{name: "too large", data: web + "---\nx: " + strings.Repeat("y", maxDocument) + "\n---\n" + webSlice,
			want: []string{"1 Service default/web", "2 : the document has 8388616 bytes, more than 8388608", "3 EndpointSlice default/web-1"}},
		{name: "aliases that explode", data: "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n",
			want: []string{"1 : yaml: document contains excessive aliasing"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.file == "" {
				c.file = "a.yaml"
			}
			got := decodeFile(c.file, []byte(c.data))
			require.Len(t, got.entries, len(c.want), "%v", got.entries)
			for i, e := range got.entries {
				object := ""
				if e.key != (key{}) {
					object = e.key.String()
				}
				line := fmt.Sprintf("%d %s", e.document, object)
				if e.problem != "" {
					line += ": " + e.problem
					require.True(t, strings.HasPrefix(line, c.want[i]), "want %q\nhave %q", c.want[i], line)
				} else {
					require.Equal(t, c.want[i], line)
					require.NotNil(t, e.object)
					require.NotZero(t, e.hash)
				}
			}
			require.Len(t, got.skipped, c.skipped)
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(service("web", "10.0.0.1")+"---\n"+slice("web-1", "web", "127.0.0.1")), false)
	f.Add([]byte("apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: a}}\n...\n%YAML 1.2\n--- # x\n~\n"), false)
	f.Add([]byte(`{"apiVersion":"v1","kind":"ServiceList","items":[{"metadata":{"name":"a","creationTimestamp":null}},5]}`), true)
	f.Add([]byte("\xff\xfea\x00:\x00"), false)
	f.Fuzz(requireDecodes)
}

// requireDecodes checks what holds for every file.
func requireDecodes(t *testing.T, data []byte, asJSON bool) {
	name := "a.yaml"
	if asJSON {
		name = "a.json"
	}
	c := decodeFile(name, data)
	last := 1
	for _, e := range c.entries {
		require.GreaterOrEqual(t, e.document, last)
		last = e.document
		require.Equal(t, e.problem == "", e.object != nil, "an entry is an object or a problem")
		require.NotContains(t, e.problem, "panicked")
		if e.object != nil {
			require.Empty(t, checkName(e.key))
			require.Equal(t, e.key.name, e.object.GetName())
		}
	}
	again := decodeFile(name, data)
	require.Len(t, again.entries, len(c.entries))
	for i := range c.entries {
		require.Equal(t, c.entries[i].key, again.entries[i].key)
		require.Equal(t, c.entries[i].hash, again.entries[i].hash)
	}
}
