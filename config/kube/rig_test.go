package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"redial/config"
)

// deadline is when a fact that is waited for is taken not to come. No test depends on it otherwise.
const deadline = time.Minute

// eager has a source try again soon, and bear with everything else.
func eager() limits {
	return limits{
		patience: time.Hour, list: time.Hour, initial: time.Hour, silence: time.Hour, optional: 5 * time.Millisecond,
		backoff: wait.Backoff{Duration: time.Millisecond, Factor: 2, Cap: 10 * time.Millisecond, Steps: 10},
	}
}

// rig is a source that follows an API server, and what its Tracker has handed out.
type rig struct {
	t       *testing.T
	api     *apiServer
	tracker *config.Tracker
	source  *Source
	logs    *logtest.Hook
	state   map[string]*config.Service
	// taken are the names in the last change that was not empty.
	taken []string
	stop  func()
}

// newRig makes a source that does not run yet.
func newRig(t *testing.T, api *apiServer, change ...func(*Config)) *rig {
	client, err := Client(ClientConfig{Master: api.url, QPS: 10000, Burst: 10000})
	require.NoError(t, err)
	logger, hook := logtest.NewNullLogger()
	b := &rig{t: t, api: api, logs: hook, state: map[string]*config.Service{},
		tracker: config.NewTracker(config.Options{Node: config.Node{Name: "node-1"}})}
	cfg := Config{Client: client, Tracker: b.tracker, Log: logrus.NewEntry(logger), limits: eager()}
	for _, c := range change {
		c(&cfg)
	}
	b.tracker = cfg.Tracker
	b.source = New(cfg)
	return b
}

// run runs the source until the test ends, and sees that it ends then.
func (b *rig) run() *rig {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.source.Run(ctx) }()
	stopped := false
	b.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			require.NoError(b.t, err)
		case <-time.After(deadline):
			require.FailNow(b.t, "the source does not end")
		}
	}
	b.t.Cleanup(b.stop)
	return b
}

// follow is a rig that runs, with an API server that is there.
func follow(t *testing.T, api *apiServer, change ...func(*Config)) *rig {
	api.listen()
	return newRig(t, api, change...).run()
}

// take applies what the Tracker has.
func (b *rig) take() {
	changes := b.tracker.Take()
	if len(changes) > 0 {
		b.taken = nil
	}
	for name, s := range changes {
		b.taken = append(b.taken, name.String())
		if s == nil {
			delete(b.state, name.String())
		} else {
			b.state[name.String()] = s
		}
	}
	slices.Sort(b.taken)
}

// until waits for the Tracker's state to be so.
func (b *rig) until(what string, is func() bool) {
	b.t.Helper()
	late := time.After(deadline)
	for b.take(); !is(); b.take() {
		select {
		case <-b.tracker.Changed():
		case <-late:
			require.FailNow(b.t, "did not happen: "+what, "services %v, status %+v, log %v", b.names(), b.source.Status(), b.said())
		}
	}
}

// serves waits for exactly these Services.
func (b *rig) serves(names ...string) {
	b.t.Helper()
	b.until("serve "+strings.Join(names, ", "), func() bool { return slices.Equal(b.names(), names) })
}

func (b *rig) names() []string {
	out := []string{}
	for name, s := range b.state {
		if s.Skipped == "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// endpoints waits for exactly these of a Service.
func (b *rig) endpoints(name string, want ...string) {
	b.t.Helper()
	b.until(fmt.Sprintf("%s has %v", name, want), func() bool {
		s := b.state[name]
		if s == nil {
			return false
		}
		have := []string{}
		for _, e := range s.Ports[0].Endpoints {
			have = append(have, e.Addr.String())
		}
		return slices.Equal(have, want)
	})
}

// fact waits for something nobody signals.
func (b *rig) fact(what string, is func() bool) {
	b.t.Helper()
	require.Eventually(b.t, is, deadline, time.Millisecond, "%s; log %v", what, b.said())
}

// said is the log from level Info up.
func (b *rig) said() []string {
	var out []string
	for _, e := range b.logs.AllEntries() {
		if e.Level <= logrus.InfoLevel {
			out = append(out, fmt.Sprint(e.Level, ": ", e.Message, " ", maps.Collect(maps.All(e.Data))))
		}
	}
	return out
}

// says counts the lines of the log that have all of the words.
func (b *rig) says(words ...string) int {
	n := 0
	for _, line := range b.said() {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			n++
		}
	}
	return n
}

func meta1(kind, version, name string) (metav1.TypeMeta, metav1.ObjectMeta) {
	return metav1.TypeMeta{Kind: kind, APIVersion: version},
		metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}
}

// service has one port http 80.
func service(name, clusterIP string, labels ...string) *v1.Service {
	s := &v1.Service{Spec: v1.ServiceSpec{
		ClusterIP: clusterIP, IPFamilies: []v1.IPFamily{v1.IPv4Protocol}, Ports: []v1.ServicePort{{Name: "http", Port: 80, Protocol: v1.ProtocolTCP}},
	}}
	s.TypeMeta, s.ObjectMeta = meta1("Service", "v1", name)
	s.Labels = labelled(labels)
	s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	return s
}

func labelled(labels []string) map[string]string {
	out := map[string]string{}
	for _, l := range labels {
		k, v, _ := strings.Cut(l, "=")
		out[k] = v
	}
	return out
}

// slice has the endpoints of a Service at port 8080.
func slice(name, of string, ips ...string) *discoveryv1.EndpointSlice {
	port, number, protocol := "http", int32(8080), v1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: &port, Port: &number, Protocol: &protocol}}}
	s.TypeMeta, s.ObjectMeta = meta1("EndpointSlice", "discovery.k8s.io/v1", name)
	s.Labels = map[string]string{discoveryv1.LabelServiceName: of}
	for _, ip := range ips {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}})
	}
	return s
}

// web is an API server with default/web, which has one endpoint.
func web(t *testing.T) *apiServer {
	api := newAPIServer(t)
	api.put("services", service("web", "198.18.0.1"))
	api.put("endpointslices", slice("web-1", "web", "198.19.0.1"))
	return api
}

func fetched(c *Config) { c.limits.noWatchList = true }
