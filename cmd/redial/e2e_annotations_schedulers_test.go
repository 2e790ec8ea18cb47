package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"redial/config"
	"redial/proxy/intercept/lab"
)

// Every scheduler is taken by annotation, and is seen to do what its name says.
func TestSchedulerAnnotations(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		var all []string
		for i, name := range []string{"a", "b", "c"} {
			addBackend(t, node, name, i+1)
			all = append(all, ip4(i+1))
		}
		two := all[:2]
		client := addHost(t, node, "client", 9)
		var sources, destinations []string
		for i := range 12 {
			sources = append(sources, fmt.Sprintf("198.18.9.%d", 100+i))
			_, err := client.Output("ip", "address", "add", sources[i]+"/24", "dev", "eth0")
			require.NoError(t, err)
			destinations = append(destinations, fmt.Sprintf("198.18.110.%d", 1+i))
		}
		r := startRedial(t, "")
		next := 0
		add := func(name string, asked annotations, backends ...string) *annotated {
			next++
			a := r.add(name, fmt.Sprintf("198.18.100.%d", next), asked, backends...)
			want, _, _ := strings.Cut(name, "-")
			assert.Equal(t, want, a.stats().Scheduler, name)
			return a
		}
		weighted := "weights=" + ip4(1) + "=2" // b has 1

		rr := add("rr", annotations{"scheduler=rr"}, all...)
		assert.Equal(t, map[string]int{"a": 2, "b": 2, "c": 2}, rr.turns(6, client))

		wrr := add("wrr", annotations{"scheduler=wrr", "weights=" + ip4(1) + "=3," + ip4(3) + "=0"}, all...)
		assert.Equal(t, map[string]int{"a": 6, "b": 2}, wrr.turns(8, client))

		lc := add("lc", annotations{"scheduler=lc"}, all...)
		held := lc.hold(3, client)
		require.Len(t, held, 3, "one each")
		held["b"][0].Close()
		lc.await("b has none", func(s *status) bool { return s.front("lc").Stats.Active == 2 })
		assert.Equal(t, map[string]int{"b": 1}, counts(lc.hold(1, client)))

		for _, name := range []string{"wlc", "sed"} {
			a := add(name, annotations{"scheduler=" + name, weighted}, two...)
			assert.Equal(t, map[string]int{"a": 4, "b": 2}, counts(a.hold(6, client)), name)
		}
		nq := add("nq", annotations{"scheduler=nq", "weights=" + ip4(1) + "=9"}, two...)
		assert.Equal(t, map[string]int{"a": 1, "b": 1}, counts(nq.hold(2, client)), "who has none first, whatever the weight")
		p2c := add("p2c", annotations{"scheduler=p2c"}, two...)
		assert.Equal(t, map[string]int{"a": 3, "b": 3}, counts(p2c.hold(6, client)), "of two, both are looked at")
		random := add("random", annotations{"scheduler=random"}, two...)
		assert.Len(t, random.turns(40, client), 2)

		for _, name := range []string{"sh", "mh"} {
			a := add(name, annotations{"scheduler=" + name}, all...)
			seen := map[string]bool{}
			for _, source := range sources {
				first := dialFrom(t, client, source, a.vip())
				for range 3 {
					assert.Equal(t, first, dialFrom(t, client, source, a.vip()), "%s: %s", name, source)
				}
				seen[first] = true
			}
			assert.Greater(t, len(seen), 1, "%s: clients are spread", name)
		}

		dh := &annotated{instance: r, name: "dh", clusterIP: "198.18.100.99", slices: endpoints("dh", "[{port: 8080}]", all...)}
		dh.ports = "{port: 80}], externalIPs: [" + strings.Join(destinations, ", ")
		dh.annotate("scheduler=dh")
		r.await("dh is steered", func(s *status) bool { return s.front("dh").Serving && len(s.front("dh").VIPs) == 13 })
		seen := map[string]bool{}
		for _, destination := range destinations {
			first := dialFrom(t, client, sources[0], destination+":80")
			for _, source := range sources[1:4] {
				assert.Equal(t, first, dialFrom(t, client, source, destination+":80"), destination)
			}
			seen[first] = true
		}
		assert.Greater(t, len(seen), 1, "destinations are spread")

		served := map[string]bool{}
		for _, svc := range r.status().Services {
			assert.Empty(t, svc.Problems, svc.Name)
			served[svc.Name] = true
		}
		for _, name := range config.Schedulers {
			assert.True(t, served[name], "no test of %s", name)
		}
	})
}

// Weights come by pod name, by address and by slice; another proxy's annotation counts where ours is missing; a change is
// in force without a rule or a socket being touched; what is wrong is told and counts as missing.
func TestWeightAndSchedulerAnnotationsChange(t *testing.T) {
	t.Parallel()
	lab.Run(t, func(t *testing.T, node *lab.Host) {
		addBackend(t, node, "a", 1)
		addBackend(t, node, "b", 2)
		client := addHost(t, node, "client", 9)
		r := startRedial(t, "")
		web := r.add("web", clusterIP1, nil, ip4(1), ip4(2))
		live := mustDial(t, client, web.vip())
		syncs, sockets := r.status().Sync.Syncs, r.listening()
		require.NotEmpty(t, sockets)
		share := func() map[string]int {
			answers := map[string]int{}
			for range 8 {
				name, err := ask(client, web.vip())
				require.NoError(t, err)
				answers[name]++
			}
			return answers
		}
		assert.Equal(t, map[string]int{"a": 4, "b": 4}, share())

		web.annotate("weights=" + ip4(1) + "=3")
		assert.Equal(t, map[string]int{"a": 6, "b": 2}, share(), "by address; whoever gives weights gets wrr")

		named := func(slice, pod, address, annotation string) string {
			return fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s, namespace: default, labels: {kubernetes.io/service-name: web}, annotations: {%s}}\n"+
				"addressType: IPv4\nports: [{port: 8080}]\nendpoints: [{addresses: [%q], targetRef: {kind: Pod, name: %s}}]\n", slice, annotation, address, pod)
		}
		web.slices = manifests(named("s1", "web-0", ip4(1), ""), named("s2", "web-1", ip4(2), ""))
		web.annotate("weights=web-1=3")
		r.await("the new weight", func(s *status) bool { return weightsOf(s, "web") == "1 3" })
		assert.Equal(t, map[string]int{"a": 2, "b": 6}, share(), "by the pod's name")

		web.slices = manifests(named("s1", "web-0", ip4(1), `redial/weight: "7"`), named("s2", "web-1", ip4(2), ""))
		web.annotate()
		r.await("the slice's weight", func(s *status) bool { return weightsOf(s, "web") == "7 1" })
		assert.Equal(t, map[string]int{"a": 7, "b": 1}, share(), "by the slice")

		web.writeAnnotated(annotations{"kube-router.io/service.scheduler=lc"})
		r.await("kube-router's", func(s *status) bool { return s.front("web").Scheduler == "lc" })
		web.writeAnnotated(annotations{"kube-router.io/service.scheduler=lc", "scheduler=dh"})
		r.await("ours", func(s *status) bool { return s.front("web").Scheduler == "dh" })

		web.writeAnnotated(annotations{"scheduler=fastest", "wieghts=web-0=3"})
		assert.Contains(t, r.awaitProblem("web", config.ReasonInvalidAnnotation).Message, "fastest")
		assert.Contains(t, r.awaitProblem("web", config.ReasonUnknownAnnotation).Message, "redial/weights?")
		assert.Equal(t, "wrr", r.status().front("web").Scheduler, "for the slice's weight, as without annotations")
		web.annotate()
		r.awaitNoProblem("web")

		assert.Equal(t, syncs, r.status().Sync.Syncs, "no rule was written")
		assert.Equal(t, sockets, r.listening(), "no socket was touched")
		assert.NoError(t, live.echo("and no connection"))
	})
}

// weightsOf lists the weights of a Service's backends.
func weightsOf(s *status, service string) string {
	var list []string
	for _, b := range s.front(service).Backends {
		list = append(list, fmt.Sprint(b.Weight))
	}
	return strings.Join(list, " ")
}

func counts(held map[string][]*call) map[string]int {
	n := map[string]int{}
	for name, calls := range held {
		n[name] = len(calls)
	}
	return n
}
