package config

import (
	"fmt"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Weights are the weights that a Service gives to single endpoints, as "10.1.0.1=5,web-0=0": sorted, each endpoint by its
// address or its pod's name, once. So they are comparable, and cost a Service without any nothing. Empty means none.
type Weights string

// maxWeights bounds the annotation, in bytes: all of one object may have as many. What changes an endpoint reads it anew.
const maxWeights = 256 << 10

// parseWeights reads entries like "web-0=3", separated by commas, semicolons or line breaks. What is wrong with some is an
// error, and the others are returned all the same. Of several for one endpoint the first counts.
func parseWeights(value string) (Weights, error) {
	if len(value) > maxWeights {
		return "", fmt.Errorf("has %d bytes, more than %d", len(value), maxWeights)
	}
	entries := map[string]uint16{}
	var first error
	bad := 0
	for entry := range strings.FieldsFuncSeq(value, func(r rune) bool { return strings.ContainsRune(",;\n\r", r) }) {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		key, weight, err := parseWeightEntry(entry)
		if old, ok := entries[key]; err == nil && ok && old != weight {
			err = fmt.Errorf("has %s twice, first with weight %d", key, old)
		} else if err == nil {
			entries[key] = weight
		}
		if err != nil {
			if bad++; first == nil {
				first = err
			}
		}
	}
	switch {
	case bad > 1:
		first = fmt.Errorf("%w; %d entries are left out for this and the like, the others count", first, bad)
	case bad == 1:
		first = fmt.Errorf("%w; the entry is left out, the others count", first)
	case len(entries) == 0:
		first = fmt.Errorf("names no endpoint: write entries like web-0=3 or 10.1.0.1=3, separated by commas")
	}
	canonical := make([]string, 0, len(entries))
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		canonical = append(canonical, key+"="+strconv.Itoa(int(entries[key])))
	}
	return Weights(strings.Join(canonical, ",")), first
}

func parseWeightEntry(entry string) (key string, weight uint16, err error) {
	key, number, ok := strings.Cut(entry, "=")
	key = strings.TrimSpace(key)
	if !ok {
		return "", 0, fmt.Errorf("has the entry %s instead of one like web-0=3 or 10.1.0.1=3", shown(entry))
	}
	if weight, err = parseWeight(number); err != nil {
		return "", 0, fmt.Errorf("has the entry %s, whose weight %w", shown(entry), err)
	}
	if a, err := parseAddr(key); err == nil {
		return a.String(), weight, nil
	}
	if len(validation.IsDNS1123Subdomain(key)) > 0 {
		return "", 0, fmt.Errorf("has the entry %s, which names neither a pod nor an IP address without a port", shown(entry))
	}
	return key, weight, nil
}

func parseWeight(s string) (uint16, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 16)
	if err != nil {
		return 0, fmt.Errorf("is not a whole number within 0-65535")
	}
	return uint16(n), nil
}

// setWeight is what an endpoint keeps of a weight: 1 is what it has anyway.
func setWeight(weight uint16) Setting[uint16] {
	if weight == 1 {
		return Setting[uint16]{}
	}
	return SetTo(weight)
}

// weighting finds an endpoint's weight. The zero value knows none.
type weighting struct {
	addrs map[netip.Addr]uint16
	pods  map[podHash]uint16
}

func (w Weights) weighting() weighting {
	var out weighting
	if w == "" {
		return out
	}
	out = weighting{map[netip.Addr]uint16{}, map[podHash]uint16{}}
	for entry := range strings.SplitSeq(string(w), ",") {
		key, weight, err := parseWeightEntry(entry)
		if err != nil {
			continue // not made by parseWeights
		}
		if a, err := parseAddr(key); err == nil {
			out.addrs[a] = weight
		} else {
			out.pods[hashPod(key)] = weight
		}
	}
	return out
}

// of returns the weight of t, whose object gives it a weight of its own if set. The Service's owner has named the very
// endpoint, and so comes first.
func (w weighting) of(t target, own Setting[uint16]) Setting[uint16] {
	if weight, ok := w.addrs[t.addr]; ok {
		return setWeight(weight)
	}
	if weight, ok := w.pods[t.pod]; ok {
		return setWeight(weight)
	}
	return own
}

// podHash stands for the name of an endpoint's pod; 0 for none. Names are compared only with the few that a Service gives
// weights to, and kept for every endpoint of the cluster, so they are not kept: that two of one Service are taken for
// one another happens once in four thousand million pairs, and not on another node at the same time.
type podHash uint32

var podSeed = maphash.MakeSeed()

func hashPod(name string) podHash {
	if name == "" {
		return 0
	}
	return max(podHash(maphash.String(podSeed, name)), 1)
}

// podOf is the pod that an endpoint is, or else its hostname: hand-written endpoints, which have no pod, can be named by it.
func podOf(ref *v1.ObjectReference, hostname string) podHash {
	if ref != nil && ref.Name != "" && (ref.Kind == "" || ref.Kind == "Pod") {
		return hashPod(ref.Name)
	}
	return hashPod(hostname)
}
