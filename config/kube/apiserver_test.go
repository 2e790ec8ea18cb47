package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
)

// apiServer is an API server over real sockets, as far as following it goes, with the faults of real ones.
type apiServer struct {
	t      *testing.T
	listen func() // opens the port, which is bound from the start
	url    string

	mu        sync.Mutex
	version   int
	compacted int // what is older is answered 410
	objects   map[string]map[string]metav1.Object
	history   map[string][]change
	changed   chan struct{} // closed and replaced at every change of what is above
	dropped   chan struct{} // closed and replaced to end all watches
	frozen    chan struct{} // closed and replaced to have all watches go on without a word
	requests  []string
	accept    string
	events    []*eventsv1.Event // that were created

	// refuse is asked for each request "verb resource" and may answer instead of the server; nil means no.
	refuse func(w http.ResponseWriter, r *http.Request, what string) bool
	// streaming: "" streams lists, "refuse" and "ignore" do not.
	streaming string
	// plain: unknown field selectors are refused.
	plain, noSlices bool
}

type change struct {
	version  int
	old, now metav1.Object
}

// newAPIServer binds a port and does not listen yet: connections are refused.
func newAPIServer(t *testing.T) *apiServer {
	a := &apiServer{t: t, version: 10, objects: map[string]map[string]metav1.Object{}, history: map[string][]change{},
		changed: make(chan struct{}), dropped: make(chan struct{}), frozen: make(chan struct{})}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	addr, err := unix.Getsockname(fd)
	require.NoError(t, err)
	a.url = fmt.Sprintf("http://127.0.0.1:%d", addr.(*unix.SockaddrInet4).Port)
	file := os.NewFile(uintptr(fd), "listener")
	t.Cleanup(func() { file.Close() })
	a.listen = func() {
		require.NoError(t, unix.Listen(fd, 128))
		l, err := net.FileListener(file)
		require.NoError(t, err)
		srv := httptest.NewUnstartedServer(http.HandlerFunc(a.serve))
		srv.Listener.Close()
		srv.Listener = l
		srv.Start()
		t.Cleanup(func() {
			srv.CloseClientConnections()
			srv.Close()
		})
	}
	return a
}

func key(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// put creates or updates an object.
func (a *apiServer) put(resource string, o metav1.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	o.SetResourceVersion(strconv.Itoa(a.version))
	if a.objects[resource] == nil {
		a.objects[resource] = map[string]metav1.Object{}
	}
	old := a.objects[resource][key(o)]
	a.objects[resource][key(o)] = o
	a.history[resource] = append(a.history[resource], change{a.version, old, o})
	a.wake()
}

// remove deletes an object; silently means that no watch will ever tell.
func (a *apiServer) remove(resource, name string, silently bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	old := a.objects[resource][name]
	require.NotNil(a.t, old, name)
	delete(a.objects[resource], name)
	if !silently {
		a.history[resource] = append(a.history[resource], change{a.version, old, nil})
	}
	a.wake()
}

// compact forgets history, so that every watch has to begin with a list.
func (a *apiServer) compact() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	a.compacted = a.version
}

// drop ends all watches.
func (a *apiServer) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.dropped)
	a.dropped = make(chan struct{})
}

// freeze has all watches go on without a word.
func (a *apiServer) freeze() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.frozen)
	a.frozen = make(chan struct{})
}

func (a *apiServer) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
	a.wake()
}

func (a *apiServer) wake() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// count is how many requests had all of the words.
func (a *apiServer) count(words ...string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, r := range a.requests {
		all := true
		for _, w := range words {
			all = all && strings.Contains(r, w)
		}
		if all {
			n++
		}
	}
	return n
}

func (a *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	verb := "list"
	switch {
	case q.Get("watch") != "":
		verb = "watch"
	case strings.HasSuffix(r.URL.Path, "v1"):
		verb, resource = "discover", r.URL.Path
	case r.Method == http.MethodPost:
		verb = "create"
	}
	what := verb + " " + resource
	text, _ := url.QueryUnescape(r.URL.RawQuery)
	a.mu.Lock()
	a.requests = append(a.requests, what+" "+text)
	a.accept = r.Header.Get("Accept")
	refuse, plain, noSlices := a.refuse, a.plain, a.noSlices
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case refuse != nil && refuse(w, r, what):
	case noSlices && strings.Contains(r.URL.Path, "discovery.k8s.io"):
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	case verb == "discover":
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			APIResources: []metav1.APIResource{{Name: "some"}}})
	case plain && strings.Contains(q.Get("fieldSelector"), "spec.clusterIP"):
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "field label not supported: spec.clusterIP")
	case verb == "list":
		a.list(w, q, resource)
	case verb == "watch":
		a.watch(w, r, q, resource)
	case verb == "create" && resource == "events":
		a.create(w, r)
	}
}

// create keeps an event.
func (a *apiServer) create(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	assert.NoError(a.t, err)
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	e, ok := o.(*eventsv1.Event)
	if !assert.True(a.t, ok, "%T, %v", o, err) {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "no event")
		return
	}
	a.set(func() { a.events = append(a.events, e) })
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(e)
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(status(code, reason, message))
}

func status(code int, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message}
}

// matcher applies the selectors of a request.
func matcher(q url.Values) func(metav1.Object) bool {
	byLabel, err := labels.Parse(q.Get("labelSelector"))
	byField, err2 := fields.ParseSelector(q.Get("fieldSelector"))
	return func(o metav1.Object) bool {
		if err != nil || err2 != nil || o == nil {
			return false
		}
		set := fields.Set{"metadata.name": o.GetName()}
		if s, ok := o.(*v1.Service); ok {
			set["spec.clusterIP"] = s.Spec.ClusterIP
		}
		return byLabel.Matches(labels.Set(o.GetLabels())) && byField.Matches(set)
	}
}

func (a *apiServer) list(w http.ResponseWriter, q url.Values, resource string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items := []metav1.Object{}
	match := matcher(q)
	for _, o := range a.objects[resource] {
		if match(o) {
			items = append(items, o)
		}
	}
	kind, version := kindOf(resource)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": kind + "List", "apiVersion": version, "items": items,
		"metadata": map[string]string{"resourceVersion": strconv.Itoa(a.version)},
	})
}

func kindOf(resource string) (kind, apiVersion string) {
	switch resource {
	case "services":
		return "Service", "v1"
	case "endpoints":
		return "Endpoints", "v1"
	case "nodes":
		return "Node", "v1"
	case "servicecidrs":
		return "ServiceCIDR", "networking.k8s.io/v1"
	}
	return "EndpointSlice", "discovery.k8s.io/v1"
}

func (a *apiServer) watch(w http.ResponseWriter, r *http.Request, q url.Values, resource string) {
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	streamed := q.Get("sendInitialEvents") == "true"
	match := matcher(q)
	send := func(kind string, object any) {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": object})
	}
	a.mu.Lock()
	dropped, frozen := a.dropped, a.frozen
	switch {
	case streamed && a.streaming == "refuse":
		a.mu.Unlock()
		fail(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "sendInitialEvents is forbidden for watch")
		return
	case from != 0 && from < a.compacted:
		a.mu.Unlock()
		fail(w, http.StatusGone, metav1.StatusReasonExpired, "too old resource version")
		return
	case streamed || from == 0:
		for _, o := range a.objects[resource] {
			if match(o) {
				send("ADDED", o)
			}
		}
		from = a.version
		if streamed && a.streaming == "" {
			kind, version := kindOf(resource)
			send("BOOKMARK", map[string]any{"kind": kind, "apiVersion": version, "metadata": map[string]any{
				"resourceVersion": strconv.Itoa(from), "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"},
			}})
		}
	}
	a.mu.Unlock()
	for {
		a.mu.Lock()
		changed := a.changed
		select {
		case <-frozen:
			a.mu.Unlock()
			<-r.Context().Done()
			return
		default:
		}
		for _, c := range a.history[resource] {
			if c.version <= from {
				continue
			}
			from = c.version
			switch was, is := match(c.old), match(c.now); {
			case is && was:
				send("MODIFIED", c.now)
			case is:
				send("ADDED", c.now)
			case was:
				gone := c.old.(runtime.Object).DeepCopyObject()
				o, _ := meta.Accessor(gone)
				o.SetResourceVersion(strconv.Itoa(c.version))
				send("DELETED", gone)
			}
		}
		a.mu.Unlock()
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-dropped:
			return
		case <-r.Context().Done():
			return
		}
	}
}
