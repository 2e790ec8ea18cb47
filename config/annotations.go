package config

import (
	"slices"
	"strings"
	"time"
)

// annotationPrefix is that of all annotations that are for this proxy.
const annotationPrefix = "redial/"

// annotationWeight, on an EndpointSlice or Endpoints, is the weight of all its endpoints.
const annotationWeight = annotationPrefix + "weight"

// annotationScheduler is that of Services; where it is missing, so is kube-router's: Services that come from there need
// not be edited (https://github.com/cloudnativelabs/kube-router, user guide).
const (
	annotationScheduler           = annotationPrefix + "scheduler"
	annotationKubeRouterScheduler = "kube-router.io/service.scheduler"
)

// annotation is one that a Service can have.
type annotation struct {
	key string
	// only is the protocol of the ports that it means anything to; empty for all.
	only Protocol
	// otherwise is what applies without it.
	otherwise string
	// read puts a value into s. Its error goes on after "annotation NAME VALUE ", and says what would be right.
	read func(s *Settings, value string) error
}

const (
	day  = 24 * time.Hour
	long = 30 * day // more than which is no limit
)

// annotations are all that a Service can have, in the order in which their problems are listed.
var annotations = []annotation{
	{annotationScheduler, "", "the proxy's default scheduler is used", readScheduler},
	{annotationPrefix + "weights", "", "endpoints have the weight of their EndpointSlice, or 1", readWeights},
	{annotationPrefix + "dial-timeout", TCP, "the proxy's --dial-timeout is used",
		readDuration(func(s *Settings) *Setting[time.Duration] { return &s.DialTimeout }, span{time.Millisecond, day, notAtAll})},
	{annotationPrefix + "hedge", TCP, "the proxy's own delay is used",
		readDuration(func(s *Settings) *Setting[time.Duration] { return &s.Hedge }, span{time.Millisecond, day, byOff})},
	{annotationPrefix + "max-retries", "", "as many backends are tried as time allows",
		readCount(func(s *Settings) *Setting[int32] { return &s.MaxRetries })},
	{annotationPrefix + "proxy-protocol", TCP, "no header is sent", readProxyProtocol},
	{annotationPrefix + "idle-timeout", TCP, "idle connections are kept",
		readDuration(func(s *Settings) *Setting[time.Duration] { return &s.IdleTimeout }, span{time.Millisecond, long, byOff | byZero})},
	{annotationPrefix + "udp-timeout", UDP, "the proxy's --udp-timeout is used",
		readDuration(func(s *Settings) *Setting[time.Duration] { return &s.UDPTimeout }, span{time.Millisecond, day, notAtAll})},
	{annotationPrefix + "max-connection-age", TCP, "connections may grow old",
		readDuration(func(s *Settings) *Setting[time.Duration] { return &s.MaxConnectionAge }, span{time.Second, long, byOff | byZero})},
	{annotationPrefix + "drain-timeout", TCP, "connections to endpoints that have left are kept",
		readDuration(func(s *Settings) *Setting[time.Duration] { return &s.DrainTimeout }, span{time.Millisecond, long, byZero})},
	{annotationPrefix + "max-connections", "", "there is no limit",
		readCount(func(s *Settings) *Setting[int32] { return &s.MaxConnections })},
	{annotationPrefix + "max-connections-per-backend", "", "there is no limit",
		readCount(func(s *Settings) *Setting[int32] { return &s.MaxPerBackend })},
	{annotationPrefix + "max-queue", TCP, "the proxy's default is used",
		readCount(func(s *Settings) *Setting[int32] { return &s.MaxQueue })},
	{annotationPrefix + "queue-timeout", TCP, "the proxy's default is used",
		readDuration(func(s *Settings) *Setting[time.Duration] { return &s.QueueTimeout }, span{time.Millisecond, day, notAtAll})},
}

// settings are what the annotations of a Service ask for; nil if that is nothing. A wrong value is a Problem, and counts as
// missing.
func settings(all map[string]string, p *problems) *Settings {
	if len(all) == 0 {
		return nil
	}
	var out *Settings
	for _, a := range annotations {
		key := a.key
		value, ok := all[key]
		if !ok && key == annotationScheduler {
			key = annotationKubeRouterScheduler
			value, ok = all[key]
		}
		if !ok {
			continue
		}
		if out == nil {
			out = &Settings{}
		}
		if err := a.read(out, strings.TrimSpace(value)); err != nil {
			p.add(ReasonInvalidAnnotation, "annotation %s %s %v: %s", key, shown(value), err, a.otherwise)
		}
	}
	unknownAnnotations("a Service", all, serviceKeys, p)
	if out.Value() == (Settings{}) {
		return nil
	}
	return out
}

// serviceKeys are the names of all annotations that a Service can have.
var serviceKeys = func() []string {
	keys := make([]string, 0, len(annotations)+1)
	for _, a := range annotations {
		keys = append(keys, a.key)
	}
	return append(keys, annotationKubeRouterScheduler)
}()

// unusedAnnotations finds annotations that mean nothing to any of the ports.
func unusedAnnotations(all map[string]string, ports []ServicePort, p *problems) {
	if len(all) == 0 || len(ports) == 0 {
		return
	}
	for _, a := range annotations {
		_, ok := all[a.key]
		if ok && a.only != "" && !slices.ContainsFunc(ports, func(port ServicePort) bool { return port.Name.Protocol == a.only }) {
			p.add(ReasonUnusedAnnotation, "annotation %s concerns %s only, and no port of the Service is %s: it changes nothing",
				a.key, a.only, a.only)
		}
	}
}

// unknownAnnotations finds annotations with our prefix that an object of that kind cannot have.
func unknownAnnotations(kind string, all map[string]string, known []string, p *problems) {
	var keys []string
	for key := range all {
		if strings.HasPrefix(key, annotationPrefix) && !slices.Contains(known, key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		hint := "known are " + strings.Join(known, ", ")
		like := nearest(strings.TrimPrefix(key, annotationPrefix), unprefixed(known))
		switch {
		case slices.Contains(serviceKeys, key):
			hint = "it belongs on the Service"
		case like != "":
			hint = "did you mean " + annotationPrefix + like + "?"
		}
		p.add(ReasonUnknownAnnotation, "annotation %s on %s is not known and changes nothing: %s", shown(key), kind, hint)
	}
}

func unprefixed(keys []string) []string {
	var out []string
	for _, key := range keys {
		if name, ok := strings.CutPrefix(key, annotationPrefix); ok {
			out = append(out, name)
		}
	}
	return out
}

// ownWeight is the weight that an object gives to all its endpoints; not set if it does not.
func (c *endpointChecker) ownWeight(kind string, all map[string]string) Setting[uint16] {
	var p problems
	unknownAnnotations(kind, all, endpointKeys, &p)
	var own Setting[uint16]
	if value, ok := all[annotationWeight]; ok {
		if weight, err := parseWeight(value); err == nil {
			own = setWeight(weight)
		} else {
			p.add(ReasonInvalidAnnotation, "annotation %s %s %v: its endpoints have the weight 1", annotationWeight, shown(value), err)
		}
	}
	for _, problem := range p {
		c.problems.add(problem.Reason, "%s: %s", c.object, problem.Message)
	}
	return own
}

// endpointKeys are the names of all annotations that an EndpointSlice or Endpoints can have.
var endpointKeys = []string{annotationWeight}
