package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"redial/config"
)

// maxDocument bounds one document. Parsed YAML takes a hundred times the memory of its text; an object that an API server
// would have stored has at most 1.5 MiB.
const maxDocument = 8 << 20

// maxNesting bounds Lists within Lists.
const maxNesting = 4

const (
	kindService   = "Service"
	kindSlice     = "EndpointSlice"
	kindEndpoints = "Endpoints"
)

// apiVersions of the kinds that are used.
var apiVersions = map[string]string{
	kindService:   v1.SchemeGroupVersion.String(),
	kindEndpoints: v1.SchemeGroupVersion.String(),
	kindSlice:     discoveryv1.SchemeGroupVersion.String(),
}

// key identifies an object.
type key struct{ kind, namespace, name string }

func (k key) String() string { return k.kind + " " + k.namespace + "/" + k.name }

// entry is what was found at one place in a file: an object, or what is wrong there.
type entry struct {
	// key is zero where not even that could be read.
	key      key
	document int
	// problem is empty for a good object.
	problem string
	// flaw is what an API server would have refused in an object that can be read. It is used only for want of a version
	// without a flaw, and then what is wrong in it is left out.
	flaw string
	// hash of the object's JSON tells whether a place holds something new.
	hash uint64
	// object is kept only until the scan that read it has handed it on: thirty thousand of them are 100 MiB.
	object metav1.Object
}

// content is what a file says.
type content struct {
	entries []entry
	// skipped describes the objects of other kinds.
	skipped []string
}

var seed = maphash.MakeSeed()

// decodeFile never fails: whatever is wrong is in the entries.
func decodeFile(path string, data []byte) content {
	var c content
	data = toUTF8(data)
	split := splitYAML
	if strings.EqualFold(filepath.Ext(path), ".json") {
		split = splitJSON
	}
	for _, doc := range split(data) {
		c.decode(doc)
	}
	return c
}

// decode adds a document. A panic of a parser is a fault of that parser, not a reason to stop serving everything else.
func (c *content) decode(doc document) {
	defer func() {
		if r := recover(); r != nil {
			c.bad(doc.number, key{}, fmt.Sprintf("the parser panicked: %v", r))
		}
	}()
	raw, err := toJSON(doc)
	if err != nil {
		c.bad(doc.number, key{}, oneLine(err.Error()))
		return
	}
	if bytes.Equal(bytes.TrimSpace(raw), []byte("null")) {
		return
	}
	c.add(doc.number, raw, "", header{}, 0)
}

func (c *content) bad(document int, k key, problem string) {
	c.entries = append(c.entries, entry{key: k, document: document, problem: problem})
}

// toJSON returns the document as JSON.
func toJSON(doc document) ([]byte, error) {
	if doc.err != nil {
		return nil, fmt.Errorf("line %d: %w", doc.line+1, doc.err)
	}
	if len(doc.data) > maxDocument {
		return nil, fmt.Errorf("the document has %d bytes, more than %d: split it", len(doc.data), maxDocument)
	}
	// JSON is mostly YAML but not wholly (tabs), and much faster to check than to convert.
	if trimmed := bytes.TrimSpace(doc.data); len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(trimmed) {
		return trimmed, nil
	}
	raw, err := yaml.YAMLToJSONStrict(doc.data)
	if err != nil && doc.line > 0 {
		// The parser counts lines from the start of what it gets. Only the failing document is parsed again.
		padded := append(bytes.Repeat([]byte("\n"), doc.line), doc.data...)
		if _, again := yaml.YAMLToJSONStrict(padded); again != nil {
			err = again
		}
	}
	return raw, err
}

// header is the part of an object that says what it is.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

// add adds an object or the items of a list. at is the path of raw within the document, "" or "items[1]"; implied is the
// kind of the items of a typed list, which need not repeat it.
func (c *content) add(document int, raw []byte, at string, implied header, depth int) {
	var h header
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &h); err != nil {
		c.bad(document, key{}, in(at, describe(raw, &h, err)))
		return
	}
	if h.Kind == "" && h.APIVersion == "" {
		h.Kind, h.APIVersion = implied.Kind, implied.APIVersion
	}
	if h.Kind == "" || h.APIVersion == "" {
		c.bad(document, key{}, in(at, "apiVersion and kind are required: this is no Kubernetes object"))
		return
	}
	switch kind, list := strings.CutSuffix(h.Kind, "List"); {
	case list && h.APIVersion == "v1" && kind == "", list && apiVersions[kind] == h.APIVersion:
		c.addList(document, raw, at, header{Kind: kind, APIVersion: apiVersions[kind]}, depth)
	case apiVersions[h.Kind] == h.APIVersion:
		c.addObject(document, raw, at, h)
	default:
		if meant, ok := meantKind(h); ok {
			c.bad(document, key{}, in(at, fmt.Sprintf("apiVersion %q, kind %q is not used: write apiVersion %q, kind %q",
				h.APIVersion, h.Kind, apiVersions[meant], meant)))
			return
		}
		c.skipped = append(c.skipped, fmt.Sprintf("%s %s %q in document %d", h.APIVersion, h.Kind, h.Metadata.Name, document))
	}
}

// meantKind returns the kind that h resembles: a version that no longer exists, or other letters. Skipping those as
// "another kind" would leave their author without an answer. (Kinds of other groups, such as Knative's Service, are others.)
func meantKind(h header) (string, bool) {
	group, _, _ := strings.Cut(h.APIVersion, "/")
	for kind, version := range apiVersions {
		own, _, _ := strings.Cut(version, "/")
		if strings.EqualFold(kind, h.Kind) && (strings.EqualFold(group, own) || !strings.Contains(h.APIVersion, "/")) {
			return kind, true
		}
	}
	return "", false
}

// in puts the path of a list's item before what is wrong with the item.
func in(at, problem string) string {
	if at == "" {
		return problem
	}
	return at + ": " + problem
}

func (c *content) addList(document int, raw []byte, at string, implied header, depth int) {
	if depth == maxNesting {
		c.bad(document, key{}, in(at, "lists are nested too deeply: take the items out"))
		return
	}
	var list struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ListMeta `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}
	if problem := unmarshal(raw, &list); problem != "" {
		c.bad(document, key{}, in(at, problem))
		// Unknown fields of the list itself say nothing about its items.
	}
	for i, item := range list.Items {
		c.add(document, item, strings.TrimPrefix(at+".items["+strconv.Itoa(i)+"]", "."), implied, depth+1)
	}
}

func (c *content) addObject(document int, raw []byte, at string, h header) {
	k := key{h.Kind, h.Metadata.Namespace, h.Metadata.Name}
	if k.namespace == "" {
		k.namespace = metav1.NamespaceDefault
	}
	if problem := checkName(k); problem != "" {
		c.bad(document, key{}, in(at, problem))
		return
	}
	var object metav1.Object
	switch h.Kind {
	case kindService:
		object = &v1.Service{}
	case kindSlice:
		object = &discoveryv1.EndpointSlice{}
	case kindEndpoints:
		//lint:ignore SA1019 hand-written Endpoints are a main case
		object = &v1.Endpoints{}
	}
	problem := unmarshal(raw, object)
	if problem == "" && h.Kind == kindSlice && object.GetLabels()[discoveryv1.LabelServiceName] == "" {
		problem = "metadata.labels lacks " + discoveryv1.LabelServiceName + ": the slice belongs to no Service"
	}
	if problem != "" {
		c.bad(document, k, in(at, problem))
		return
	}
	e := entry{key: k, document: document, hash: maphash.Bytes(seed, raw), object: object}
	if flaws := config.Check(object); len(flaws) > 0 {
		e.flaw = in(at, flaws[0].Message)
		if more := len(flaws) - 1; more > 0 {
			e.flaw += fmt.Sprintf(" (and %d more)", more)
		}
	}
	c.entries = append(c.entries, e)
}

// checkName refuses names no API server would accept: they reach logs, rules and metrics.
func checkName(k key) string {
	if k.name == "" {
		return "metadata.name is required"
	}
	if msgs := validation.IsDNS1123Subdomain(k.name); len(msgs) > 0 {
		return fmt.Sprintf("metadata.name %q: %s", k.name, strings.Join(msgs, "; "))
	}
	if msgs := validation.IsDNS1123Label(k.namespace); len(msgs) > 0 {
		return fmt.Sprintf("metadata.namespace %q: %s", k.namespace, strings.Join(msgs, "; "))
	}
	return ""
}
