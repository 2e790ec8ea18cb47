package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
)

// sticks says whether 15 answers in a row come from one pod, as Kubernetes' own tests define it.
func sticks(c Client, to target) error {
	t := c.Count(to.network, to.addr, 15)
	if err := t.Failed(); err != nil {
		return err
	}
	if t.Names() != 1 {
		return fmt.Errorf("answered by %v", t.Answers)
	}
	return nil
}

func TestAffinity(t *testing.T) {
	s := parallel(t)
	svc := s.service("web", ofType(v1.ServiceTypeNodePort), withAffinity(10800))
	s.deploy("web", 3)
	client := Client{Host: s.host(s.pod("client").Name)}
	s.awaitEndpoints("web", 3)
	for _, to := range append(vips(svc), nodePorts(svc, node1)...) {
		eventually(t, "affinity at "+to.String(), func() error { return sticks(client, to) })
	}
}

func TestAffinitySwitched(t *testing.T) {
	s := parallel(t)
	svc := s.service("web", ofType(v1.ServiceTypeNodePort))
	s.deploy("web", 3)
	pods := names(s.pods("web"))
	to := append(vips(svc), nodePorts(svc, node1)...)
	for range 2 {
		reaches(t, shared.Outside, nodePorts(svc, node1), pods...)
		reaches(t, node1.Host, vips(svc), pods...)
		s.patch("service", "web", `{"spec":{"sessionAffinity":"ClientIP"}}`)
		for _, to := range to {
			eventually(t, "affinity at "+to.String(), func() error { return sticks(Client{Host: node1.Host}, to) })
		}
		s.patch("service", "web", `{"spec":{"sessionAffinity":"None"}}`)
	}
}

func TestAffinityTimeout(t *testing.T) {
	const timeout = 2 * time.Second
	for _, kind := range []v1.ServiceType{v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort} {
		t.Run(string(kind), func(t *testing.T) {
			s := parallel(t)
			svc := s.service("web", ofType(kind), withAffinity(int32(timeout/time.Second)))
			s.deploy("web", 3)
			s.awaitEndpoints("web", 3)
			all := vips(svc)
			if kind == v1.ServiceTypeNodePort {
				all = nodePorts(svc, node1)
			}
			client, to := Client{Host: shared.Outside}, all[0]
			if kind == v1.ServiceTypeClusterIP {
				client.Host = node1.Host
			}
			eventually(t, "affinity", func() error { return sticks(client, to) })
			before := time.Now()
			pinned, err := client.Ask(to.network, to.addr, "hostname")
			require.NoError(t, err)
			// Each request renews the pin.
			last := before
			for began := time.Now(); time.Since(began) < 2*timeout; time.Sleep(timeout / 8) {
				asked := time.Now()
				name, err := client.Ask(to.network, to.addr, "hostname")
				require.NoError(t, err)
				if time.Since(last) < timeout { // else the machine, not the proxy, was late
					require.Equal(t, pinned, name)
				}
				last, pinned = asked, name
			}
			eventually(t, "the pin expires", func() error {
				time.Sleep(timeout + timeout/4) // what is tested is that time passes
				name, err := client.Ask(to.network, to.addr, "hostname")
				if err == nil && name == pinned {
					err = fmt.Errorf("answered by %s again", name)
				}
				return err
			})
		})
	}
}
