package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"redial/cmd/redial-bench/apiserver"
	"redial/config"
	"redial/proxy/intercept/lab"
)

// What an owner has to fix is an event on the Service, and a line of the status.
func TestProblemsBecomeEvents(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, _ *lab.Host) {
		api := apiserver.New()
		for _, o := range []runtime.Object{
			&v1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node-1"}},
			&v1.Service{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-web", Annotations: map[string]string{"redial/hedge": "no"}},
				Spec: v1.ServiceSpec{
					ClusterIP: "198.18.100.1", ClusterIPs: []string{"198.18.100.1"}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
					Ports: []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP}},
				},
			},
		} {
			require.NoError(t, api.Put(o))
		}
		written := make(chan *eventsv1.Event, 10)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost {
				api.ServeHTTP(w, r)
				return
			}
			body, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
			if e, ok := o.(*eventsv1.Event); assert.True(t, ok, "%T, %v", o, err) {
				written <- e
			}
			w.WriteHeader(http.StatusCreated)
		}))
		t.Cleanup(func() { server.CloseClientConnections(); server.Close() })

		r := newInstance(t, t.TempDir())
		r.cmd.Args = append(redialCommand().Args, "--master", server.URL, "--hostname-override", "node-1", "--interception", "none",
			"--admin-socket", r.socket, "--healthz-bind-address", "", "--metrics-bind-address", "")
		r.start()
		assert.Contains(t, r.awaitProblem("web", config.ReasonInvalidAnnotation).Message, "the proxy's own delay is used")
		var e *eventsv1.Event
		select {
		case e = <-written:
		case <-time.After(testPatience):
			require.FailNow(t, "no event was written")
		}
		assert.Equal(t, config.ReasonInvalidAnnotation, e.Reason)
		assert.Contains(t, e.Note, `annotation redial/hedge "no"`)
		assert.EqualValues(t, "uid-web", e.Regarding.UID)
		assert.Equal(t, "redial-node-1", e.ReportingInstance)
		assert.Empty(t, written, "one event for one problem")
	})
}
