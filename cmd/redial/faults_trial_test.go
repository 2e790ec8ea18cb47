package main

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"redial/proxy/intercept/lab"
)

// trial is a node with redial, backends, and clients.
type trial struct {
	t        *testing.T
	node     *lab.Host
	redial   *instance
	pods     [faultPods]*faultyBackend
	stable   *backend // behind the other Services; never broken
	client   *lab.Host
	registry registry
	ledger   *ledger
	plan     *plan
	shown    settings // what the manifests say now; endpoints are as in the plan
	written  map[string]string
	places   []place
	// goodSince is since when a pod has been good for whoever begins to dial.
	goodSince [faultPods]time.Time
	clients   sync.WaitGroup
	end       chan struct{}
}

const faultDrain = 4 * time.Second

var faultFlags = []string{
	"--node-name=node", "--iptables-sync-period=1s", "--udp-timeout=2s", "--tcp-keepalive=1s", "--tcp-user-timeout=30s",
	"--drain-timeout=" + faultDrain.String(), "--dial-timeout=20s", "--metrics-bind-address=127.0.0.1:10249", "--profiling",
}

// The Services' addresses.
const (
	otherIP  = "198.18.100.2"
	tcpNode  = 30080
	udpNode  = 30053
	extraNet = "198.18.101."
)

func newTrial(t *testing.T, node *lab.Host, p *plan) *trial {
	s := &trial{t: t, node: node, ledger: newLedger(), plan: p, written: map[string]string{}, end: make(chan struct{})}
	for i := range s.pods {
		s.pods[i] = addFaultyBackend(t, node, i+1, &s.registry, s.ledger)
	}
	s.stable = addBackend(t, node, "stable", 7)
	s.client = addHost(t, node, "client", 9)
	pod := addHost(t, node, "pod", 8)
	s.places = []place{s.placeOf(node, 9), s.placeOf(s.client, 9), s.placeOf(pod, 8)}
	dir := t.TempDir()
	for name, content := range s.manifests() {
		writeFile(t, filepath.Join(dir, name), content)
		s.written[name] = content
	}
	s.redial = startIn(t, dir, faultFlags...)
	s.awaitShown()
	return s
}

// placeOf are the addresses that a host can use, the node's NodePorts being those on link n.
func (s *trial) placeOf(h *lab.Host, n int) place {
	p := place{host: h}
	for _, a := range []string{"198.18.100.1", "[2001:db8:100::1]", "198.18.110.1", "[2001:db8:110::1]"} {
		p.tcp, p.udp = append(p.tcp, a+":80"), append(p.udp, a+":53")
	}
	for _, a := range []string{fmt.Sprintf("198.18.%d.1", n), fmt.Sprintf("[2001:db8:%d::1]", n)} {
		p.tcp = append(p.tcp, fmt.Sprintf("%s:%d", a, tcpNode))
		p.udp = append(p.udp, fmt.Sprintf("%s:%d", a, udpNode))
	}
	return p
}

// manifests renders what the plan wants, by file.
func (s *trial) manifests() map[string]string {
	set := s.plan.settings
	policy := func(local bool) string {
		if local {
			return "Local"
		}
		return "Cluster"
	}
	affinity := "None"
	if set.affinity {
		affinity = "ClientIP"
	}
	tcp := fmt.Sprintf("http-%d", set.portName)
	svc := service("web", fmt.Sprintf(`{type: NodePort, clusterIPs: [198.18.100.1, "2001:db8:100::1"], externalIPs: [198.18.110.1, "2001:db8:110::1"],
  sessionAffinity: %s, internalTrafficPolicy: %s, externalTrafficPolicy: %s,
  ports: [{name: %s, port: 80, nodePort: %d}, {name: dns, protocol: UDP, port: 53, nodePort: %d}]}`,
		affinity, policy(set.internal), policy(set.abroad), tcp, tcpNode, udpNode))
	ports := fmt.Sprintf("[{name: %s, port: 8080}, {name: dns, protocol: UDP, port: 8053}]", tcp)
	files := map[string]string{"web.yaml": manifests(svc, s.slice("4", ports, ip4), s.slice("6", ports, ip6))}
	other := service("other", "{clusterIP: "+otherIP+", ports: [{port: 80}]}")
	if set.scaledDown {
		files["other.yaml"] = manifests(other, endpoints("other", "[{port: 8080}]"))
	} else {
		files["other.yaml"] = manifests(other, endpoints("other", "[{port: 8080}]", ip4(7)))
	}
	for i, there := range set.extra {
		if there {
			name := extraName(i)
			files[name+".yaml"] = web(name, extraNet+fmt.Sprint(i+1), ip4(7))
		}
	}
	return files
}

func extraName(i int) string { return fmt.Sprintf("extra-%d", i+1) }

func (s *trial) slice(family, ports string, address func(int) string) string {
	var list strings.Builder
	for i, pod := range s.plan.pods {
		node := "node"
		if i >= localPods {
			node = "elsewhere"
		}
		conditions := ""
		switch pod.listed {
		case listedNot:
			continue
		case listedReady:
			conditions = "ready: true, serving: true"
		case listedUnready:
			conditions = "ready: false, serving: false"
		case listedTerminating:
			conditions = "ready: false, serving: true, terminating: true"
		}
		fmt.Fprintf(&list, "{addresses: [%q], nodeName: %s, conditions: {%s}}, ", address(i+1), node, conditions)
	}
	return fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
		"metadata: {name: web-%s, namespace: default, labels: {kubernetes.io/service-name: web}}\n"+
		"addressType: IPv%s\nports: %s\nendpoints: [%s]\n", family, family, ports, list.String())
}

// startClients starts n clients of TCP and some of UDP.
func (s *trial) startClients(seed uint64, n int) {
	for i := range n {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		c := &steady{idle: i%5 == 4, rng: rng, places: s.places, registry: &s.registry, ledger: s.ledger, end: s.end}
		s.clients.Go(c.run)
	}
	for i := range (n + 1) / 2 {
		rng := rand.New(rand.NewPCG(seed, uint64(1000+i)))
		c := &asker{rng: rng, places: s.places, registry: &s.registry, ledger: s.ledger, end: s.end}
		s.clients.Go(c.run)
	}
}

// await waits for a fact that no status tells.
func (s *trial) await(what string, fact func() bool) {
	s.t.Helper()
	require.True(s.t, s.within(slowPatience, fact), "not in time: %s", what)
}

// slowPatience is for what takes as long as a timeout of redial's or of the clients', on a loaded machine.
const slowPatience = 90 * time.Second

func (s *trial) within(patience time.Duration, fact func() bool) bool {
	for began := time.Now(); !eventually(fact); {
		if time.Since(began) > patience {
			return false
		}
	}
	return true
}

// pace waits until some more connections were made, or are not in a while, since a fault may keep them all waiting.
func (s *trial) pace(connections int) {
	goal := s.ledger.counted("connections") + connections
	for began := time.Now(); s.ledger.counted("connections") < goal && time.Since(began) < 500*time.Millisecond; {
		select {
		case <-s.ledger.violated:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}
