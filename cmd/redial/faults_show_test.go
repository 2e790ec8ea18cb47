package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/stretchr/testify/require"

	"redial/config"
	"redial/proxy"
)

// show writes the manifests that have changed and waits until redial follows them.
func (s *trial) show() {
	s.t.Helper()
	want := s.manifests()
	for name, content := range want {
		if s.written[name] != content {
			s.redial.write(name, content)
		}
	}
	for name := range s.written {
		if _, ok := want[name]; !ok {
			require.NoError(s.t, os.Remove(filepath.Join(s.redial.dir, name)))
		}
	}
	s.written = want
	s.awaitShown()
}

// awaitShown waits until redial's status is what the manifests say, and then that its addresses behave so.
func (s *trial) awaitShown() {
	s.t.Helper()
	mismatch := ""
	defer func() {
		if mismatch != "" {
			s.ledger.say("redial does not follow the manifests: %s", mismatch)
		}
	}()
	s.redial.await("the manifests followed", func(st *status) bool {
		mismatch = s.mismatch(st)
		return mismatch == ""
	})
	set := s.plan.settings
	if set.scaledDown != s.shown.scaledDown {
		s.await("other Service scaled", func() bool {
			_, err := ask(s.client, otherIP+":80")
			return set.scaledDown == errors.Is(err, syscall.ECONNREFUSED) && set.scaledDown == (err != nil)
		})
	}
	for i, there := range set.extra {
		if there && !s.shown.extra[i] {
			name, err := ask(s.client, extraNet+fmt.Sprint(i+1)+":80")
			if err != nil || name != s.stable.name {
				s.ledger.violate("a new Service is said to be served and is not: %q, %v", name, err)
			}
		}
	}
	s.shown = set
}

// mismatch says what in redial's status is not as it has to be; "" is nothing.
func (s *trial) mismatch(st *status) string {
	set := s.plan.settings
	switch {
	case st.Sync.Error != "":
		return st.Sync.Error
	case st.Sync.PendingServiceChanges+st.Sync.PendingEndpointChanges > 0:
		return "changes are pending"
	}
	want := []string{"other", "web"}
	for i, there := range set.extra {
		if there {
			want = append(want, extraName(i))
		}
	}
	var have []string
	for _, svc := range st.Services {
		have = append(have, svc.Name)
		for _, p := range svc.Ports {
			for _, f := range p.Fronts {
				empty := svc.Name == "other" && set.scaledDown
				if f.Serving == empty || len(f.VIPs) == 0 {
					return fmt.Sprintf("%s: serving %t, %d addresses", svc.Name, f.Serving, len(f.VIPs))
				}
			}
		}
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		return fmt.Sprintf("Services %v, want %v", have, want)
	}
	web := st.service("web")
	if len(web.Ports) != 2 {
		return fmt.Sprintf("%d ports", len(web.Ports))
	}
	for _, p := range web.Ports {
		if m := s.portMismatch(p); m != "" {
			return fmt.Sprintf("%s port %s: %s", p.Protocol, p.Name, m)
		}
	}
	return ""
}

func (s *trial) portMismatch(p proxy.PortStatus) string {
	set := s.plan.settings
	if name := fmt.Sprintf("http-%d", set.portName); p.Protocol == config.TCP && p.Name != name {
		return "want " + name
	}
	if set.affinity != (p.Affinity > 0) {
		return fmt.Sprintf("affinity %s", p.Affinity)
	}
	pools := map[bool]config.Pool{false: config.ClusterPool, true: config.LocalPool}
	classes := map[string]bool{}
	for _, f := range p.Fronts {
		for i, pod := range s.plan.pods {
			if i >= localPods && f.Pool == config.LocalPool {
				continue
			}
			want := map[string]string{
				listedReady: proxy.StateReady, listedUnready: proxy.StateUnused, listedTerminating: proxy.StateUnused,
			}[pod.listed]
			if have := stateOf(f, i); have != want {
				return fmt.Sprintf("%s of %s is %q, want %q", podName(i), f.Pool, have, want)
			}
		}
		for _, v := range f.VIPs {
			local := set.abroad && v.From != "node"
			if v.Kind == "ClusterIP" {
				local = set.internal
			}
			if f.Pool != pools[local] {
				return fmt.Sprintf("%s %s is of pool %s", v.Kind, v.Address, f.Pool)
			}
			classes[string(f.Family)+v.Kind] = true
		}
	}
	if len(classes) != 6 {
		return fmt.Sprintf("%d kinds of addresses, want 3 of each family", len(classes))
	}
	return ""
}

func stateOf(f proxy.FrontendStatus, pod int) string {
	for _, b := range f.Backends {
		if b.Address == ip4(pod+1)+":8080" || b.Address == "["+ip6(pod+1)+"]:8080" ||
			b.Address == ip4(pod+1)+":8053" || b.Address == "["+ip6(pod+1)+"]:8053" {
			return b.State
		}
	}
	return ""
}
