// Package apiserver is a Kubernetes API server as far as Service proxies need one to measure them: it holds objects in
// memory, ready to be sent, and streams them to whoever watches. It knows neither selectors nor rights: every object is
// for everybody. Objects are sent as protobuf, whatever is asked for.
//
//	s := apiserver.New()
//	s.Put(&v1.Service{...})
//	http.Serve(listener, s)
//
// All methods may be called from any goroutine.
package apiserver

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// contentType is what is sent.
const contentType = "application/vnd.kubernetes.protobuf"

// kinds are those that can be watched, by resource.
var kinds = map[string]schema.GroupVersionKind{
	"services":       v1.SchemeGroupVersion.WithKind("Service"),
	"nodes":          v1.SchemeGroupVersion.WithKind("Node"),
	"endpointslices": discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
	"servicecidrs":   networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"),
}

var encoder = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)

// Server is the API server, an [http.Handler].
type Server struct {
	mu      sync.Mutex // guards what follows
	version int
	stores  map[string]*store
	changed chan struct{} // closed and replaced at every change
}

// store is one resource.
type store struct {
	objects map[string]int // index in log of the latest change of each
	log     []change
}

// change is an object as it became.
type change struct {
	version int
	frame   []byte // of the watch
	object  runtime.Object
}

// New returns a server without objects.
func New() *Server {
	s := &Server{version: 1, stores: map[string]*store{}, changed: make(chan struct{})}
	for resource := range kinds {
		s.stores[resource] = &store{objects: map[string]int{}}
	}
	return s
}

// Put creates or replaces an object, which must not be modified afterwards. The error is that it is of a kind that is not
// served, or cannot be encoded.
func (s *Server) Put(object runtime.Object) error {
	resource, err := resourceOf(object)
	if err != nil {
		return err
	}
	o, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stores[resource]
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	name := o.GetNamespace() + "/" + o.GetName()
	kind := "ADDED"
	if _, exists := st.objects[name]; exists {
		kind = "MODIFIED"
	}
	frame, err := frameOf(kind, object)
	if err != nil {
		return err
	}
	st.objects[name] = len(st.log)
	st.log = append(st.log, change{s.version, frame, object})
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

func resourceOf(object runtime.Object) (string, error) {
	gvk := object.GetObjectKind().GroupVersionKind()
	for resource, kind := range kinds {
		if kind == gvk {
			return resource, nil
		}
	}
	return "", fmt.Errorf("objects of kind %s are not served", gvk)
}

// frameOf is one event of a watch: a length, and that many bytes.
func frameOf(kind string, object runtime.Object) ([]byte, error) {
	var b bytes.Buffer
	if err := encoder.Encode(object, &b); err != nil {
		return nil, fmt.Errorf("encoding an object: %w", err)
	}
	event, err := (&metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: b.Bytes()}}).Marshal()
	if err != nil {
		return nil, fmt.Errorf("encoding an event: %w", err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(event))), event...), nil
}

// ServeHTTP answers lists, watches and questions for what there is. Whatever else is asked is not found.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/apis"), "/api")
	st := s.stores[path[strings.LastIndex(path, "/")+1:]]
	kind := kinds[path[strings.LastIndex(path, "/")+1:]]
	var err error
	switch {
	case r.Method != http.MethodGet:
		http.NotFound(w, r)
	case st != nil && r.URL.Query().Get("watch") != "":
		err = s.watch(w, r, st, kind)
	case st != nil:
		err = s.list(w, st, kind)
	case strings.HasSuffix(path, "/v1"):
		w.Header().Set("Content-Type", "application/json")
		err = json.NewEncoder(w).Encode(resources(strings.TrimPrefix(path, "/")))
	default:
		http.NotFound(w, r)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// resources lists what a group and version has.
func resources(groupVersion string) metav1.APIResourceList {
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: groupVersion}
	for name, kind := range kinds {
		if kind.GroupVersion().String() == groupVersion {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: name, Kind: kind.Kind, Verbs: metav1.Verbs{"list", "watch"}})
		}
	}
	return list
}

func (s *Server) list(w http.ResponseWriter, st *store, kind schema.GroupVersionKind) error {
	list, err := scheme.Scheme.New(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err != nil {
		return err
	}
	list.GetObjectKind().SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	s.mu.Lock()
	version := s.version
	objects := make([]runtime.Object, 0, len(st.objects))
	for _, i := range st.objects {
		objects = append(objects, st.log[i].object)
	}
	s.mu.Unlock()
	if err := meta.SetList(list, objects); err != nil {
		return err
	}
	list.(metav1.ListInterface).SetResourceVersion(strconv.Itoa(version))
	w.Header().Set("Content-Type", contentType)
	return encoder.Encode(list, w)
}

// watch sends what happens after the version that is asked for, and before that, if it is asked for, what there is.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, st *store, kind schema.GroupVersionKind) error {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	var frames [][]byte
	s.mu.Lock()
	if from == 0 || r.URL.Query().Get("sendInitialEvents") == "true" {
		from = s.version
		for _, i := range st.objects {
			frames = append(frames, st.log[i].frame)
		}
	}
	s.mu.Unlock()
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		end, err := endOfList(kind, from)
		if err != nil {
			return err
		}
		frames = append(frames, end)
	}
	w.Header().Set("Content-Type", contentType+";stream=watch")
	for {
		for _, f := range frames {
			if _, err := w.Write(f); err != nil {
				return nil // the client has left
			}
		}
		w.(http.Flusher).Flush()
		frames = frames[:0]
		s.mu.Lock()
		changed := s.changed
		first := len(st.log)
		for first > 0 && st.log[first-1].version > from {
			first--
		}
		for _, c := range st.log[first:] {
			frames = append(frames, c.frame)
			from = c.version
		}
		s.mu.Unlock()
		if len(frames) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return nil
		}
	}
}

// endOfList is the bookmark that tells that all there is has been sent.
func endOfList(kind schema.GroupVersionKind, version int) ([]byte, error) {
	object, err := scheme.Scheme.New(kind)
	if err != nil {
		return nil, err
	}
	object.GetObjectKind().SetGroupVersionKind(kind)
	o, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	o.SetResourceVersion(strconv.Itoa(version))
	o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return frameOf("BOOKMARK", object)
}
