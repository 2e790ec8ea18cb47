package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestParseWeights(t *testing.T) {
	for _, c := range []struct {
		value string
		want  Weights
		wrong string
	}{
		{"web-0=3", "web-0=3", ""},
		{" web-1 = 1 ,\n web-0=3;10.1.0.1=0,,\r\n", "10.1.0.1=0,web-0=3,web-1=1", ""},
		{"::ffff:10.1.0.1=5", "10.1.0.1=5", ""},
		{"2001:DB8:0::1=65535", "2001:db8::1=65535", ""},
		{"web-0=007", "web-0=7", ""},
		{"web-0=3,web-0=3", "web-0=3", ""},
		{"web-0=3,web-0=4,a=1", "a=1,web-0=3", "has web-0 twice, first with weight 3; the entry is left out"},
		{"10.1.0.1=3,::ffff:10.1.0.1=4", "10.1.0.1=3", "has 10.1.0.1 twice"},
		{"", "", "names no endpoint: write entries like web-0=3"},
		{" , ", "", "names no endpoint"},
		{"web-0", "", `has the entry "web-0" instead of one like web-0=3 or 10.1.0.1=3; the entry is left out`},
		{"web-0:3,b=2", "b=2", `has the entry "web-0:3" instead`},
		{"=3", "", "names neither a pod nor an IP address"},
		{"Web_0=3", "", "names neither a pod nor an IP address"},
		{"10.1.0.1:80=3", "", `has the entry "10.1.0.1:80=3", which names neither a pod nor an IP address without a port`},
		{"fe80::1%eth0=3", "", "names neither"},
		{"web-0=-1,web-1=65536,web-2=,c=1", "c=1", `has the entry "web-0=-1", whose weight is not a whole number within 0-65535; 3 entries are left out for this and the like, the others count`},
		{"web-0=3=4", "", "whose weight is not a whole number"},
		{strings.Repeat("a=1,", maxWeights), "", "more than 262144"},
		{strings.Repeat("x", 1000), "", `xxx"... instead`},
	} {
		got, err := parseWeights(c.value)
		require.Equal(t, c.want, got, shown(c.value))
		if c.wrong == "" {
			require.NoError(t, err, c.value)
		} else {
			require.ErrorContains(t, err, c.wrong)
		}
	}
}

// weightsOf are the weights of the endpoints of the first port, in order.
func weightsOf(s *Service) []int {
	var out []int
	for _, e := range s.Ports[0].Endpoints {
		out = append(out, int(e.Weight.Or(1)))
	}
	return out
}

// weighed is a slice with the annotation whose endpoints are 10.1.0.1.. and the pods web-0..
func weighed(name, weight string, ips ...string) *discoveryv1.EndpointSlice {
	s := newSlice(name, ips...)
	if weight != "" {
		s.Annotations = annotationsOf("weight=" + weight)
	}
	for i := range s.Endpoints {
		s.Endpoints[i].TargetRef = &v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprint("web-", i)}
	}
	return s
}

func TestWeights(t *testing.T) {
	three := func(weight string, changes ...sliceChange) []*discoveryv1.EndpointSlice {
		return []*discoveryv1.EndpointSlice{changed(weighed("web-1", weight, "10.1.0.1", "10.1.0.2", "10.1.0.3"), changes...)}
	}
	for _, c := range []struct {
		name     string
		service  []string
		slices   []*discoveryv1.EndpointSlice
		want     []int
		problems []Problem
	}{
		{"none", nil, three(""), []int{1, 1, 1}, nil},
		{"of the slice", nil, three("5"), []int{5, 5, 5}, nil},
		{"quiesced", nil, three(" 0 "), []int{0, 0, 0}, nil},
		{"one spelling of 1", nil, three("1"), []int{1, 1, 1}, nil},
		{"wrong", nil, three("1e1"), []int{1, 1, 1}, []Problem{{"", ReasonInvalidAnnotation,
			`EndpointSlice default/web-1: annotation redial/weight "1e1" is not a whole number within 0-65535: its endpoints have the weight 1`}}},
		{"too much", nil, three("65536"), []int{1, 1, 1}, []Problem{{"", ReasonInvalidAnnotation, "0-65535"}}},
		{"by address", []string{"weights=10.1.0.2=7"}, three(""), []int{1, 7, 1}, nil},
		{"by pod", []string{"weights=web-2=7,web-3=9"}, three(""), []int{1, 1, 7}, nil},
		{"the address is nearer than the pod", []string{"weights=web-1=4,10.1.0.2=7"}, three(""), []int{1, 7, 1}, nil},
		{"the Service is nearer than the slice", []string{"weights=web-0=1,web-1=0"}, three("5"), []int{1, 0, 5}, nil},
		{"some are wrong", []string{"weights=web-0=x,web-1=3"}, three("5"), []int{5, 3, 5}, []Problem{{"", ReasonInvalidAnnotation,
			`annotation redial/weights "web-0=x,web-1=3" has the entry "web-0=x", whose weight is not a whole number within 0-65535; the entry is left out, the others count`}}},
		{"by hostname", []string{"weights=db=3"}, three("", func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].TargetRef, s.Endpoints[0].Hostname = nil, ptr("db")
			s.Endpoints[1].Hostname = ptr("db") // has a pod, which is what it is called
		}), []int{3, 1, 1}, nil},
		{"what is not a pod has no pod's name", []string{"weights=web-0=3"}, three("", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].TargetRef.Kind = "VM" }),
			[]int{1, 1, 1}, nil},
		{"not known on a slice", nil, three("", func(s *discoveryv1.EndpointSlice) {
			s.Annotations = annotationsOf("weights=5", "scheduler=rr", "wieght=2")
		}), []int{1, 1, 1},
			[]Problem{{"", ReasonUnknownAnnotation, `EndpointSlice default/web-1: annotation "redial/scheduler" on an EndpointSlice is not known and changes nothing: it belongs on the Service`},
				{"", ReasonUnknownAnnotation, "it belongs on the Service"}, {"", ReasonUnknownAnnotation, "did you mean redial/weight?"}}},
		{"two slices, one endpoint: the one that says", nil, []*discoveryv1.EndpointSlice{weighed("web-1", "", "10.1.0.1"), weighed("web-2", "0", "10.1.0.1")}, []int{0}, nil},
		{"two slices, one endpoint: the greater", nil, []*discoveryv1.EndpointSlice{weighed("web-1", "0", "10.1.0.1"), weighed("web-2", "3", "10.1.0.1")}, []int{3}, nil},
		{"a scheduler that does not weigh", []string{"weights=web-0=3", "scheduler=lc"}, three(""), []int{3, 1, 1},
			[]Problem{{"", ReasonUnusedAnnotation, "to the scheduler lc in the annotation all but 0 are alike"}}},
		{"a scheduler that does not weigh, slices", []string{"scheduler=rr"}, []*discoveryv1.EndpointSlice{weighed("web-1", "0", "10.1.0.1"),
			weighed("web-2", "2", "10.1.0.2"), weighed("web-3", "3", "10.1.0.3")}, []int{0, 2, 3}, []Problem{{"", ReasonUnusedAnnotation, "the scheduler rr"}}},
		{"nothing to weigh", []string{"scheduler=rr"}, three("5"), []int{5, 5, 5}, nil},
		{"quiescing is not weighing", []string{"scheduler=rr", "weights=web-0=0"}, three("5"), []int{0, 5, 5}, nil},
		{"quiescing the last is not either", []string{"scheduler=rr", "weights=web-2=0"}, three("5"), []int{5, 5, 0}, nil},
		{"a scheduler that weighs", []string{"scheduler=wrr", "weights=web-0=0,web-1=9"}, three(""), []int{0, 9, 1}, nil},
		{"no scheduler named", []string{"weights=web-1=9"}, three(""), []int{1, 9, 1}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := merged(newService(annotated(c.service...)), c.slices...)
			requireSound(t, got)
			require.Equal(t, c.want, weightsOf(got))
			requireProblems(t, got.Problems, c.problems...)
		})
	}
}

func TestWeightsOfEndpoints(t *testing.T) {
	eps := newEndpoints(subset([]string{"10.1.0.1", "10.1.0.2"}, []string{"10.1.0.3"}, v1.EndpointPort{Name: "http", Port: 8080}))
	eps.Annotations = annotationsOf("weight=4", "x=y")
	eps.Subsets[0].Addresses[0].TargetRef = &v1.ObjectReference{Name: "web-0"}
	eps.Subsets[0].NotReadyAddresses[0].Hostname = "db"
	tr := delivered()
	tr.SetService(newService(annotated("weights=web-0=2,db=3")))
	tr.SetEndpoints(eps)
	got := tr.Take()[web]
	require.Equal(t, []int{2, 4, 3}, weightsOf(got))
	requireProblems(t, got.Problems, Problem{"", ReasonUnknownAnnotation, `Endpoints default/web: annotation "redial/x" on Endpoints`})
}

// Weights arrive however they change, and need no other frontend.
func TestWeightsChange(t *testing.T) {
	tr := delivered()
	tr.SetService(newService())
	tr.SetSlice(weighed("web-1", "", "10.1.0.1", "10.1.0.2"))
	first := tr.Take()[web]
	step := func(what string, change func(), want ...int) {
		t.Helper()
		change()
		got := tr.Take()[web]
		require.NotNil(t, got, what)
		require.Equal(t, want, weightsOf(got), what)
		require.True(t, first.Ports[0].SameFrontend(got.Ports[0]))
	}
	step("slice", func() { tr.SetSlice(weighed("web-1", "2", "10.1.0.1", "10.1.0.2")) }, 2, 2)
	step("Service", func() { tr.SetService(newService(annotated("weights=web-1=9"))) }, 2, 9)
	step("Service again", func() { tr.SetService(newService(annotated("weights=web-1=8"))) }, 2, 8)
	renamed := weighed("web-1", "2", "10.1.0.1", "10.1.0.2")
	renamed.Endpoints[0].TargetRef.Name, renamed.Endpoints[1].TargetRef.Name = "web-1", "web-0"
	step("another pod at the address", func() { tr.SetSlice(renamed) }, 8, 2)
	step("no weights", func() { tr.SetService(newService()) }, 2, 2)
	tr.SetSlice(weighed("web-1", "2", "10.1.0.1", "10.1.0.2"))
	require.Empty(t, tr.Take(), "whose pod an endpoint is matters to nobody else")
}

func TestPodHash(t *testing.T) {
	require.Zero(t, podOf(nil, ""))
	require.Zero(t, podOf(&v1.ObjectReference{Kind: "Pod"}, ""))
	seen := map[podHash]bool{}
	for i := range 1000 {
		h := hashPod(fmt.Sprint("web-", i))
		require.NotZero(t, h)
		seen[h] = true
	}
	require.Greater(t, len(seen), 995)
}

func FuzzAnnotations(f *testing.F) {
	for _, value := range []string{"", "rr", "off", "0", "5s", "1h30m", "-1ns", "9999999999h", "100", "1e9", "v2", "web-0=3,10.1.0.1=0", "::1=1;a=2\nb = 3", "a=1,a=2", "\xff=1", "=,=,"} {
		f.Add(value, value)
	}
	f.Fuzz(func(t *testing.T, value, unknown string) {
		for _, a := range annotations {
			var p problems
			all := map[string]string{a.key: value, annotationPrefix + unknown: value}
			before := len(all)
			s := settings(all, &p)
			requireSoundSettings(t, s)
			require.Len(t, all, before)
			invalid := false
			for _, problem := range p {
				require.Less(t, len(problem.Message), 2000)
				invalid = invalid || problem.Reason == ReasonInvalidAnnotation
			}
			require.True(t, s != nil || invalid, "what is not taken is told")
			var again problems
			require.Equal(t, s, settings(all, &again))
			require.Equal(t, p, again)
		}
		var p problems
		svc := plain(newService(everything, annotated("weights="+value)))
		requireSound(t, &svc)
		if weights, err := parseWeights(value); err == nil {
			// Every entry is found again.
			w := weights.weighting()
			require.Equal(t, strings.Count(string(weights), "="), len(w.addrs)+len(w.pods))
		}
		c := endpointChecker{object: "x"}
		own := c.ownWeight("x", map[string]string{annotationWeight: value})
		require.False(t, own.IsSet() && len(c.problems) > 0)
		unknownAnnotations("x", map[string]string{annotationPrefix + unknown: ""}, endpointKeys, &p)
		require.Equal(t, unknown != "weight", len(p) == 1)
	})
}
