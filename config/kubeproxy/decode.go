package kubeproxy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const (
	kind       = "KubeProxyConfiguration"
	apiVersion = "kubeproxy.config.k8s.io/v1alpha1"
	// oldAPIVersion is what the group was called until Kubernetes 1.8. The fields are the same.
	oldAPIVersion = "componentconfig/v1alpha1"
)

// Config is the content of a file. A zero field means its default, whatever that is.
type Config struct {
	v1alpha1.KubeProxyConfiguration `json:",inline"`

	// UDPIdleTimeout ends an idle UDP session. kube-proxy dropped it with the userspace mode, in 1.26.
	UDPIdleTimeout *metav1.Duration `json:"udpIdleTimeout,omitempty"`
	// ResourceContainer was the cgroup to run in; kube-proxy dropped it in 1.16.
	ResourceContainer string `json:"resourceContainer,omitempty"`
}

// Decode reads a file, YAML or JSON. Warnings name what is in it and means nothing: unknown fields and repeated ones, of
// which the last counts. An error is a file that is no KubeProxyConfiguration, or a value of the wrong type.
func Decode(content []byte) (c *Config, warnings []string, err error) {
	all := documents(content)
	if len(all) > 1 {
		warnings = append(warnings, "there are several documents in the file: only the first one counts")
	}
	if len(all) > 0 {
		content = all[0]
	}
	var object map[string]any
	if err := yaml.Unmarshal(content, &object); err != nil {
		return nil, nil, fmt.Errorf("reading YAML: %w", err)
	}
	if v := object["apiVersion"]; v != apiVersion && v != oldAPIVersion || object["kind"] != kind {
		return nil, nil, fmt.Errorf("apiVersion %v, kind %v: want apiVersion %s, kind %s", show(v), show(object["kind"]), apiVersion, kind)
	}
	if _, err := yaml.YAMLToJSONStrict(content); err != nil {
		warnings = append(warnings, "of repeated fields the last one counts: "+strings.ReplaceAll(err.Error(), "\n", ""))
	}
	if err := modernize(object); err != nil {
		return nil, nil, err
	}
	c = &Config{}
	strict, err := decode(object, c)
	if err != nil {
		return nil, nil, blame(object, err)
	}
	for _, s := range strict {
		warnings = append(warnings, s.Error())
	}
	slices.Sort(warnings) // the decoder visits objects in random order
	return c, warnings, nil
}

// decode is exact in the case of names, as the API machinery is. It sets what it can and returns unknown fields in strict.
func decode(object map[string]any, into *Config) (strict []error, err error) {
	b, err := marshal(object)
	if err != nil {
		return nil, err
	}
	return json.UnmarshalStrict(b, into, json.DisallowUnknownFields)
}

// modernize rewrites what has changed its type.
func modernize(object map[string]any) error {
	gates, ok := object["featureGates"].(string) // until Kubernetes 1.9
	if !ok {
		return nil
	}
	m := map[string]any{}
	for _, gate := range strings.Split(gates, ",") {
		if gate = strings.TrimSpace(gate); gate == "" {
			continue
		}
		name, value, _ := strings.Cut(gate, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil {
			return fmt.Errorf("featureGates: %q: want NAME=true or NAME=false", gate)
		}
		m[strings.TrimSpace(name)] = on
	}
	object["featureGates"] = m
	return nil
}

// blame finds the field that an error is about, since errors of types that decode themselves do not say it.
func blame(object map[string]any, err error) error {
	if path, found := culprit(object, func(m map[string]any) map[string]any { return m }); found != nil {
		return fmt.Errorf("%s: %w", path, found)
	}
	return err
}

// culprit decodes one field at a time. within puts an object at its place in the file.
func culprit(object map[string]any, within func(map[string]any) map[string]any) (path string, err error) {
	for _, name := range sortedKeys(object) {
		alone := map[string]any{name: object[name]}
		_, err := decode(within(alone), &Config{})
		if err == nil {
			continue
		}
		if inner, ok := object[name].(map[string]any); ok {
			deeper, innerErr := culprit(inner, func(m map[string]any) map[string]any { return within(map[string]any{name: m}) })
			if innerErr != nil {
				return name + "." + deeper, innerErr
			}
		}
		return name, err
	}
	return "", nil
}

var separator = regexp.MustCompile(`(?m)^---(\s|$)`)

// documents splits a file; empty documents do not count.
func documents(content []byte) [][]byte {
	var all [][]byte
	for _, d := range separator.Split(string(content), -1) {
		if isData(d) {
			all = append(all, []byte(d))
		}
	}
	return all
}

func isData(document string) bool {
	for line := range strings.Lines(document) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return true
		}
	}
	return false
}

func show(v any) string {
	if v == nil {
		return "missing"
	}
	return fmt.Sprintf("%q", fmt.Sprint(v))
}
