package config

import (
	"strconv"
	"time"
)

// Asked lists what s asks for as the annotations that would do so, "idle-timeout=5m0s": without their prefix, in the order
// of [Settings]'s fields. Nil for nothing.
func (s *Settings) Asked() (list []string) {
	v := s.Value()
	text := func(name, value string) {
		if value != "" {
			list = append(list, name+"="+value)
		}
	}
	duration := func(name string, d Setting[time.Duration], none string) {
		switch {
		case d.IsSet() && d.Or(0) == 0:
			text(name, none)
		case d.IsSet():
			text(name, d.Or(0).String())
		}
	}
	count := func(name string, n Setting[int32]) {
		if n.IsSet() {
			text(name, strconv.Itoa(int(n.Or(0))))
		}
	}
	text("scheduler", v.Scheduler)
	text("weights", string(v.Weights))
	duration("dial-timeout", v.DialTimeout, "")
	duration("hedge", v.Hedge, "off")
	count("max-retries", v.MaxRetries)
	if v.ProxyProtocol > 0 {
		text("proxy-protocol", "v"+strconv.Itoa(int(v.ProxyProtocol)))
	}
	duration("idle-timeout", v.IdleTimeout, "off")
	duration("udp-timeout", v.UDPTimeout, "")
	duration("max-connection-age", v.MaxConnectionAge, "off")
	duration("drain-timeout", v.DrainTimeout, "0")
	count("max-connections", v.MaxConnections)
	count("max-connections-per-backend", v.MaxPerBackend)
	count("max-queue", v.MaxQueue)
	duration("queue-timeout", v.QueueTimeout, "")
	return list
}
