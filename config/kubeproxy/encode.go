package kubeproxy

import (
	stdjson "encoding/json"
	"maps"
	"slices"

	"sigs.k8s.io/yaml"
)

// Encode writes a file that [Decode] reads, and kube-proxy too.
func (c *Config) Encode() ([]byte, error) {
	out := *c
	out.APIVersion, out.Kind = apiVersion, kind
	return yaml.Marshal(out)
}

func marshal(object map[string]any) ([]byte, error) { return stdjson.Marshal(object) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
