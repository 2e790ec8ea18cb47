package apiserver

import (
	"context"
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func service(name, ip string) *v1.Service {
	return &v1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.ServiceSpec{ClusterIP: ip}}
}

func serve(t *testing.T) (*Server, kubernetes.Interface) {
	s := New()
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: srv.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf}})
	require.NoError(t, err)
	return s, client
}

// text is an event in short.
func text(t *testing.T, e watch.Event) string {
	o, err := meta.Accessor(e.Object)
	require.NoError(t, err, "%v", e)
	ip := ""
	if svc, ok := e.Object.(*v1.Service); ok {
		ip = svc.Spec.ClusterIP
	}
	return fmt.Sprint(e.Type, " ", o.GetName(), " ", ip)
}

func TestStreamsWhatThereIsAndThenWhatHappens(t *testing.T) {
	s, client := serve(t)
	require.NoError(t, s.Put(service("a", "198.18.0.1")))
	require.NoError(t, s.Put(service("a", "198.18.0.2")))
	w, err := client.CoreV1().Services("").Watch(context.Background(), metav1.ListOptions{
		SendInitialEvents: new(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	require.NoError(t, err)
	defer w.Stop()
	first := <-w.ResultChan()
	assert.Contains(t, text(t, first), " a 198.18.0.2", "not what it was before")
	end := <-w.ResultChan()
	assert.Equal(t, watch.Bookmark, end.Type)
	o, err := meta.Accessor(end.Object)
	require.NoError(t, err)
	assert.Equal(t, "true", o.GetAnnotations()[metav1.InitialEventsAnnotationKey])

	require.NoError(t, s.Put(service("b", "198.18.0.3")))
	require.NoError(t, s.Put(service("a", "198.18.0.4")))
	assert.Equal(t, "ADDED b 198.18.0.3", text(t, <-w.ResultChan()))
	assert.Equal(t, "MODIFIED a 198.18.0.4", text(t, <-w.ResultChan()))

	again, err := client.CoreV1().Services("").Watch(context.Background(), metav1.ListOptions{ResourceVersion: o.GetResourceVersion()})
	require.NoError(t, err)
	defer again.Stop()
	assert.Equal(t, "ADDED b 198.18.0.3", text(t, <-again.ResultChan()), "since a version")
}

func TestLists(t *testing.T) {
	s, client := serve(t)
	for i := range 3 {
		require.NoError(t, s.Put(service("a", fmt.Sprintf("198.18.0.%d", i+1))))
	}
	list, err := client.CoreV1().Services("").List(context.Background(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	assert.Equal(t, "198.18.0.3", list.Items[0].Spec.ClusterIP)
	assert.Equal(t, list.Items[0].ResourceVersion, list.ResourceVersion)
	slices, err := client.DiscoveryV1().EndpointSlices("").List(context.Background(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, slices.Items)
}

func TestTellsWhatItHas(t *testing.T) {
	_, client := serve(t)
	list, err := client.Discovery().ServerResourcesForGroupVersion("discovery.k8s.io/v1")
	require.NoError(t, err)
	require.Len(t, list.APIResources, 1)
	assert.Equal(t, "endpointslices", list.APIResources[0].Name)
	assert.ErrorContains(t, New().Put(&v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}), "Pod")
}
