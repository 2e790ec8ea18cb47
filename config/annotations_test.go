package config

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
)

// annotated gives a Service annotations "name=value" with the prefix of this proxy, or of another if name has one.
func annotated(all ...string) func(*v1.Service) {
	return func(s *v1.Service) { s.Annotations = annotationsOf(all...) }
}

func annotationsOf(all ...string) map[string]string {
	out := map[string]string{}
	for _, a := range all {
		name, value, _ := strings.Cut(a, "=")
		if !strings.Contains(name, "/") {
			name = annotationPrefix + name
		}
		out[name] = value
	}
	return out
}

// everything gives the Service a TCP and a UDP port, so that all annotations concern one.
func everything(s *v1.Service) {
	s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "dns", Protocol: v1.ProtocolUDP, Port: 53})
}

func TestAnnotations(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		annotation string
		want       Settings // none means that the value is wrong
		wrong      string   // what the problem says
	}{
		{"scheduler=rr", Settings{Scheduler: "rr"}, ""},
		{"scheduler= mh\n", Settings{Scheduler: "mh"}, ""},
		{"scheduler=RR", Settings{}, `redial/scheduler "RR" is not one of rr, wrr, lc, wlc, sed, nq, random, p2c, sh, dh, mh: the proxy's default`},
		{"scheduler=", Settings{}, `redial/scheduler "" is not one of rr`},
		{"kube-router.io/service.scheduler=lc", Settings{Scheduler: "lc"}, ""},
		{"kube-router.io/service.scheduler=lblc", Settings{}, `annotation kube-router.io/service.scheduler "lblc" is not one of rr`},

		{"dial-timeout=2s", Settings{DialTimeout: SetTo(2 * s)}, ""},
		{"dial-timeout=1ms", Settings{DialTimeout: SetTo(time.Millisecond)}, ""},
		{"dial-timeout=24h", Settings{DialTimeout: SetTo(24 * time.Hour)}, ""},
		{"dial-timeout=999us", Settings{}, "is not a duration like 500ms, 5s or 1h30m within 1ms-24h: the proxy's --dial-timeout is used"},
		{"dial-timeout=24h1ns", Settings{}, "within 1ms-24h"},
		{"dial-timeout=-1s", Settings{}, "within 1ms-24h"},
		{"dial-timeout=0", Settings{}, "within 1ms-24h"},
		{"dial-timeout=off", Settings{}, "within 1ms-24h"},
		{"dial-timeout=5", Settings{}, `redial/dial-timeout "5" is not a duration`},
		{"dial-timeout=1d", Settings{}, "is not a duration"},

		{"hedge=30ms", Settings{Hedge: SetTo(30 * time.Millisecond)}, ""},
		{"hedge=off", Settings{Hedge: SetTo[time.Duration](0)}, ""},
		{"hedge=0", Settings{}, `within 1ms-24h, nor off: the proxy's own delay is used`},

		{"max-retries=0", Settings{MaxRetries: SetTo[int32](0)}, ""},
		{"max-retries=3", Settings{MaxRetries: SetTo[int32](3)}, ""},
		{"max-retries=-1", Settings{}, "is not a whole number within 0-1000000000: as many backends"},
		{"max-retries=1.5", Settings{}, "is not a whole number"},
		{"max-retries=1000000001", Settings{}, "is not a whole number"},
		{"max-retries=18446744073709551616", Settings{}, "is not a whole number"},

		{"proxy-protocol=v1", Settings{ProxyProtocol: 1}, ""},
		{"proxy-protocol=v2", Settings{ProxyProtocol: 2}, ""},
		{"proxy-protocol=2", Settings{}, `redial/proxy-protocol "2" is neither v1 nor v2: no header is sent`},

		{"idle-timeout=10m", Settings{IdleTimeout: SetTo(600 * s)}, ""},
		{"idle-timeout=0", Settings{IdleTimeout: SetTo[time.Duration](0)}, ""},
		{"idle-timeout=off", Settings{IdleTimeout: SetTo[time.Duration](0)}, ""},
		{"idle-timeout=720h", Settings{IdleTimeout: SetTo(720 * time.Hour)}, ""},
		{"idle-timeout=721h", Settings{}, "within 1ms-720h, nor 0, nor off: idle connections are kept"},
		{"udp-timeout=250ms", Settings{UDPTimeout: SetTo(250 * time.Millisecond)}, ""},
		{"udp-timeout=0s", Settings{}, "within 1ms-24h: the proxy's --udp-timeout is used"},
		{"max-connection-age=1h", Settings{MaxConnectionAge: SetTo(time.Hour)}, ""},
		{"max-connection-age=0s", Settings{MaxConnectionAge: SetTo[time.Duration](0)}, ""},
		{"max-connection-age=999ms", Settings{}, "within 1s-720h, nor 0, nor off: connections may grow old"},
		{"drain-timeout=0s", Settings{DrainTimeout: SetTo[time.Duration](0)}, ""},
		{"drain-timeout=30s", Settings{DrainTimeout: SetTo(30 * s)}, ""},
		{"drain-timeout=off", Settings{}, "within 1ms-720h, nor 0: connections to endpoints that have left are kept"},

		{"max-connections=1000000000", Settings{MaxConnections: SetTo[int32](1e9)}, ""},
		{"max-connections=1e3", Settings{}, "there is no limit"},
		{"max-connections-per-backend=0", Settings{MaxPerBackend: SetTo[int32](0)}, ""},
		{"max-connections-per-backend=+1", Settings{}, "there is no limit"},
		{"max-queue=0", Settings{MaxQueue: SetTo[int32](0)}, ""},
		{"max-queue=many", Settings{}, "the proxy's default is used"},
		{"queue-timeout=5s", Settings{QueueTimeout: SetTo(5 * s)}, ""},
		{"queue-timeout=0", Settings{}, "the proxy's default is used"},
	} {
		t.Run(c.annotation, func(t *testing.T) {
			got := plain(newService(everything, annotated(c.annotation)))
			requireSound(t, &got)
			require.Equal(t, c.want, got.Ports[0].Settings.Value())
			if c.wrong == "" {
				require.Empty(t, got.Problems)
				return
			}
			requireProblems(t, got.Problems, Problem{"", ReasonInvalidAnnotation, c.wrong})
			require.Nil(t, got.Ports[0].Settings)
		})
	}
}

func TestAnnotationsBesideEachOther(t *testing.T) {
	got := plain(newService(everything, annotated("scheduler=sh", "kube-router.io/service.scheduler=lc", "hedge=never", "max-retries=2", "Hedge=off",
		"kube-router.io/service.schedflags=x", "other.example/redial=1")))
	require.Equal(t, &Settings{Scheduler: "sh", MaxRetries: SetTo[int32](2)}, got.Ports[0].Settings, "what is right counts")
	require.Len(t, got.Ports, 2)
	requireProblems(t, got.Problems, Problem{"", ReasonInvalidAnnotation, `redial/hedge "never"`},
		Problem{"", ReasonUnknownAnnotation, `annotation "redial/Hedge" on a Service is not known and changes nothing: did you mean redial/hedge?`})

	got = plain(newService(annotated("scheduler=x", "kube-router.io/service.scheduler=lc")))
	require.Nil(t, got.Ports[0].Settings, "an annotation for this proxy is not replaced by one for another")
	got = plain(newService(annotated("scheduler=x"), func(s *v1.Service) { s.Spec.ClusterIP = "None" }))
	require.Empty(t, got.Problems, "what is not served is not checked")
}

func TestUnknownAnnotations(t *testing.T) {
	for given, want := range map[string]string{
		"schedular":                   "did you mean redial/scheduler?",
		"weight":                      "did you mean redial/weights?",
		"max-conections":              "did you mean redial/max-connections?",
		"max-connection-per-backend":  "did you mean redial/max-connections-per-backend?",
		"x":                           "known are redial/scheduler, redial/weights, redial/dial-timeout, ",
		"":                            `annotation "redial/" on a Service is not known`,
		strings.Repeat("weights", 99): `annotation "redial/weightsweights`,
	} {
		got := plain(newService(annotated(given + "=1")))
		requireProblems(t, got.Problems, Problem{"", ReasonUnknownAnnotation, want})
		require.Less(t, len(got.Problems[0].Message), 600)
		require.Nil(t, got.Ports[0].Settings)
	}
	got := plain(newService(annotated("b=1", "a=1", "c=1")))
	requireProblems(t, got.Problems, Problem{"", ReasonUnknownAnnotation, "redial/a"}, Problem{"", ReasonUnknownAnnotation, "redial/b"},
		Problem{"", ReasonUnknownAnnotation, "redial/c"})
}

func TestNearest(t *testing.T) {
	names := []string{"max-entries", "max-retries", "min-entries"}
	require.Equal(t, "max-retries", nearest("max-retrys", names))
	require.Equal(t, "max-retries", nearest("max-retries", names))
	require.Empty(t, nearest("hedge", names))
	require.Empty(t, nearest("", names))
	require.Equal(t, 3, distance("kitten", "sitting"))
	require.Equal(t, 4, distance("", "four"))
	require.Equal(t, 4, distance("four", ""))
}

// Annotations for one protocol are wrong only where no port has it.
func TestUnusedAnnotations(t *testing.T) {
	udp := func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolUDP }
	only := map[string]Protocol{}
	for _, a := range annotations {
		name := strings.TrimPrefix(a.key, annotationPrefix)
		only[name] = a.only
		value := map[string]string{"scheduler": "rr", "weights": "a=1", "proxy-protocol": "v1"}[name]
		if value == "" {
			if value = "3s"; strings.HasPrefix(name, "max-") && name != "max-connection-age" {
				value = "3"
			}
		}
		problems := map[Protocol][]Problem{}
		for protocol, change := range map[Protocol]func(*v1.Service){TCP: func(*v1.Service) {}, UDP: udp, "both": everything} {
			got := plain(newService(change, annotated(name+"="+value)))
			require.NotNil(t, got.Ports[0].Settings, name)
			problems[protocol] = got.Problems
		}
		require.Empty(t, problems["both"])
		for _, protocol := range []Protocol{TCP, UDP} {
			if a.only == "" || a.only == protocol {
				require.Empty(t, problems[protocol])
			} else {
				requireProblems(t, problems[protocol], Problem{"", ReasonUnusedAnnotation,
					fmt.Sprintf("annotation redial/%s concerns %s only, and no port of the Service is %s", name, a.only, a.only)})
			}
		}
	}
	require.Equal(t, TCP, only["proxy-protocol"])
	require.Equal(t, UDP, only["udp-timeout"])
	require.Empty(t, only["max-connections"])
}

// A directory of manifests holds back objects that an API server would refuse. It would not refuse these.
func TestAnnotationsAreNotRefused(t *testing.T) {
	require.Empty(t, Check(newService(annotated("scheduler=x", "y=z", "udp-timeout=1s"))))
	slice := newSlice("web-1", "10.1.0.1")
	slice.Annotations = annotationsOf("weight=x", "y=z")
	require.Empty(t, Check(slice))
	require.NotEmpty(t, Check(newService(annotated("scheduler=x"), func(s *v1.Service) { s.Spec.Ports[0].Port = 0 })))
}

// What most Services do not use costs them nothing.
func TestSettingsCostNothingUnlessUsed(t *testing.T) {
	var p problems
	foreign := map[string]string{"a8r.io/owner": "x", v1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05Z"}
	c := endpointChecker{object: "x"}
	for _, all := range []map[string]string{nil, foreign} {
		require.Zero(t, testing.AllocsPerRun(10, func() {
			if settings(all, &p) != nil || c.ownWeight("x", all).IsSet() {
				panic("nothing was asked for")
			}
		}))
	}
	type endpoint struct { // one without a weight
		like Endpoint
	}
	require.Equal(t, unsafe.Offsetof(Endpoint{}.At), unsafe.Offsetof(endpoint{}.like.Ready)+8, "the weight fills a gap")
	require.Equal(t, unsafe.Offsetof(target{}.at), unsafe.Offsetof(target{}.ready)+8, "the pod fills a gap")
}

// A change of settings alone is handed out, needs neither other rules nor other listeners, and its undoing is no change.
func TestSettingsChange(t *testing.T) {
	tr := delivered()
	take := func(all ...string) *Service {
		tr.SetService(newService(annotated(all...)))
		return tr.Take()[web]
	}
	first := take()
	require.Nil(t, first.Ports[0].Settings)
	second := take("scheduler=lc")
	require.Equal(t, "lc", second.Ports[0].Settings.Scheduler)
	require.True(t, first.Ports[0].SameFrontend(second.Ports[0]))
	require.Nil(t, take("scheduler=lc"))
	require.Nil(t, take("kube-router.io/service.scheduler=lc"), "the same by another name")
	require.NotNil(t, take("scheduler=lc", "drain-timeout=0"))
	require.NotNil(t, take("scheduler=lc", "drain-timeout=1s"))
	require.Equal(t, SetTo(time.Second), tr.services[web].taken.Ports[0].Settings.DrainTimeout)
	require.Nil(t, take().Ports[0].Settings)
}
