package config

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

//lint:file-ignore SA1019 see translateEndpoints

// seedObjects are a Service, a slice, an Endpoints and a Node that use most fields and are wrong in some.
func seedObjects(t require.TestingT) [][]byte {
	svc := newService(func(s *v1.Service) {
		s.Spec.Type = v1.ServiceTypeLoadBalancer
		s.Spec.ClusterIPs = []string{"10.0.0.1", "fd00::1"}
		s.Spec.IPFamilies = []v1.IPFamily{"IPv4", "IPv6"}
		s.Spec.ExternalIPs = []string{"192.0.2.1", "::ffff:192.0.2.1", "127.0.0.1", "fe80::1%eth0"}
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "dns", Protocol: "UDP", Port: 53, NodePort: 30053},
			v1.ServicePort{Name: "x", Protocol: "SCTP", Port: 70000, NodePort: -1})
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: ptr(int32(5))}}
		s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "198.51.100.1"}, {IP: "x", IPMode: ptr(v1.LoadBalancerIPModeProxy)},
			{IP: "192.0.2.1"}}
		s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.1/8", " ::ffff:10.0.0.0/100", "2001:db8::/32", "10.0.0.0"}
		annotated("scheduler=mh", "weights=10.1.0.1=5,web-0=0", "hedge=off", "udp-timeout=5s", "max-queue=0", "drain-timeout=0s",
			"proxy-protocol=v3", "schedular=rr", "max-connections=100", "idle-timeout=1h30m")(s)
		s.Annotations[v1.AnnotationLoadBalancerSourceRangesKey] = "192.0.2.0/24,"
		s.Labels = map[string]string{"app": "web"}
		s.Spec.InternalTrafficPolicy = ptr(v1.ServiceInternalTrafficPolicyLocal)
		s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
		s.Spec.HealthCheckNodePort = 32000
	})
	slice := newSlice("web-1", "10.1.0.1", "127.0.0.1", "::1", "fe80::1")
	slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{}, discoveryv1.EndpointPort{Port: ptr(int32(-1))})
	slice.Endpoints[0].Conditions.Ready = ptr(false)
	slice.Endpoints[0].NodeName = ptr("node-a")
	slice.Endpoints[1].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "b"}, {Name: "a,b"}, {Name: "a"}},
		ForNodes: []discoveryv1.ForNode{{Name: "node-a"}}}
	slice.Endpoints[2].TargetRef = &v1.ObjectReference{Kind: "Pod", Name: "web-0"}
	slice.Endpoints[1].Hostname = ptr("web-0")
	slice.Annotations = map[string]string{annotationWeight: "3", v1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05.6Z"}
	node := newNode(func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: taintLeaving}} })
	endpoints := newEndpoints(subset([]string{"10.1.0.1", "fd00::1"}, []string{"x"}, v1.EndpointPort{Name: "http", Port: 8080}))
	endpoints.Annotations = map[string]string{annotationWeight: "0"}
	var out [][]byte
	for _, v := range []any{svc, slice, endpoints, node} {
		raw, err := json.Marshal(v)
		require.NoError(t, err)
		out = append(out, raw)
	}
	return out
}

// FuzzTranslate feeds objects as an API or a file could contain them, whatever their values.
func FuzzTranslate(f *testing.F) {
	seed := seedObjects(f)
	f.Add(seed[0], seed[1], seed[2], seed[3])
	f.Add([]byte("{}"), []byte("{}"), []byte("{}"), []byte("{}"))
	f.Fuzz(requireTranslates)
}

// TestTranslateMutations replaces values of good objects by hostile ones, which bytes changed at random seldom become.
func TestTranslateMutations(t *testing.T) {
	seed := seedObjects(t)
	rnd := rand.New(rand.NewPCG(11, 13))
	for range 1500 {
		var objects [][]byte
		for _, raw := range seed {
			var v any
			require.NoError(t, json.Unmarshal(raw, &v))
			for range rnd.IntN(4) {
				v = mutate(rnd, v)
			}
			mutated, err := json.Marshal(v)
			require.NoError(t, err)
			objects = append(objects, mutated)
		}
		requireTranslates(t, objects[0], objects[1], objects[2], objects[3])
	}
}

var hostile = []any{nil, "", "None", "10.0.0.1", "fd00::1", "::ffff:10.0.0.1", "0.0.0.0", "255.255.255.255", "::", "fe80::1", "ff02::1",
	"10.0.0.0/8", "10.0.0.9/8", "::/0", "0.0.0.0/0", "::ffff:0:0/96", "::ffff:0:0/95", " 10.0.0.0/8 ", "10.0.0.0/33", "Local", "Cluster", "a", "a,b", "node-a",
	"IPv4", "IPv6", "FQDN", "TCP", "UDP", "ClientIP", "NodePort", "LoadBalancer", "ExternalName", "http", "dns", "off", "0s", "-5s", "100h", "10.1.0.1=2", "web-0=9, a", "2026-01-02T03:04:05Z", "\x00\n", 0.0, 1.0, 80.0, 65536.0, -1.0,
	2147483647.0, true, false, []any{}, map[string]any{}}

// mutate replaces, removes or repeats something within v.
func mutate(rnd *rand.Rand, v any) any {
	switch v := v.(type) {
	case map[string]any:
		if keys := slices.Sorted(maps.Keys(v)); len(keys) > 0 && rnd.IntN(20) > 0 {
			k := keys[rnd.IntN(len(keys))]
			v[k] = mutate(rnd, v[k])
			return v
		}
	case []any:
		if len(v) > 0 && rnd.IntN(5) > 0 {
			i := rnd.IntN(len(v))
			if rnd.IntN(3) == 0 {
				return append(v, v[i])
			}
			v[i] = mutate(rnd, v[i])
			return v
		}
	}
	return hostile[rnd.IntN(len(hostile))]
}

func requireTranslates(t *testing.T, a, b, c, d []byte) {
	var svc v1.Service
	var node v1.Node
	var slice discoveryv1.EndpointSlice
	var endpoints v1.Endpoints
	// What was decoded before an error is as good an object as any.
	_ = json.Unmarshal(a, &svc)
	_ = json.Unmarshal(b, &slice)
	_ = json.Unmarshal(c, &endpoints)
	_ = json.Unmarshal(d, &node)
	name := serviceName(&svc)
	slice.Namespace, endpoints.Namespace, endpoints.Name = svc.Namespace, svc.Namespace, svc.Name
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: svc.Name}
	before := []any{svc.DeepCopy(), slice.DeepCopy(), endpoints.DeepCopy(), node.DeepCopy()}
	here := TranslateNode(&node)
	requireSoundNode(t, here)
	for _, opts := range []Options{{ServiceProxyName: svc.Labels[labelServiceProxyName]}, {DisableExternalIPs: true}} {
		value := translate(&svc, opts)
		requireSound(t, &value)
	}

	tr := delivered()
	tr.SetNode(here)
	tr.SetService(&svc)
	tr.SetEndpoints(&endpoints)
	first := tr.Take()
	require.Contains(t, first, name)
	requireSound(t, first[name])
	tr.SetSlice(&slice)
	for _, s := range tr.Take() {
		requireSound(t, s)
		for _, p := range s.Ports {
			for _, family := range Families {
				local := Usable(p.Endpoints, family, LocalPool, tr.Node())
				cluster := Usable(p.Endpoints, family, ClusterPool, tr.Node())
				for _, a := range slices.Concat(local, cluster) {
					require.Equal(t, family, FamilyOf(a.Addr()))
				}
				require.False(t, len(cluster) == 0 && len(local) > 0, "what is here is in the cluster")
			}
		}
	}
	tr.SetService(&svc)
	tr.SetSlice(&slice)
	require.Empty(t, tr.Take(), "translating twice gives the same")
	require.Equal(t, before, []any{&svc, &slice, &endpoints, &node}, "objects are not modified")
	tr.DeleteService(name)
	require.Equal(t, Changes{name: nil}, tr.Take())
}
