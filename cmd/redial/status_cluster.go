package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"redial/config/kube"
)

// printFollowing says where the Services come from, and what is amiss with that.
func printFollowing(w io.Writer, s *kube.Status, now time.Time) {
	var known []string
	for _, r := range s.Resources {
		known = append(known, fmt.Sprintf("%d %s", r.Objects, r.Resource))
	}
	fmt.Fprintf(w, "Kubernetes API: %s\n", strings.Join(known, ", "))
	if len(s.Waiting) > 0 {
		fmt.Fprintf(w, "WAITING for a first list of %s: until then nothing changes\n", strings.Join(s.Waiting, ", "))
	}
	for _, r := range s.Resources {
		if r.Error == "" {
			continue
		}
		fmt.Fprintf(w, "NO NEWS of %s for %s, serving what is known: %s\n", r.Resource, now.Sub(r.Since).Round(time.Second), oneLine(r.Error))
	}
	switch s.Node {
	case "", kube.NodeFound, kube.NodeUnknown:
	default:
		fmt.Fprintf(w, "NODE OBJECT %s: see --hostname-override\n", strings.ToUpper(s.Node))
	}
}
