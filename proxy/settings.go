package proxy

import (
	"time"

	"redial/config"
	"redial/proxy/relay"
)

// defaultQueue is how many connections of a Service port that has limits may wait, where the Service does not say.
const defaultQueue = 1024

var noSettings relay.Settings

// shared returns where s is kept: nearly all frontends have the zero value, and one for all will do.
func shared(s relay.Settings) *relay.Settings {
	if s == noSettings {
		return &noSettings
	}
	return &s
}

// settings are what the relay is to do in this Service's own way. limit is that of the Service port; nil: it has none.
func settings(port *config.ServicePort, limit *relay.Limit) relay.Settings {
	asked := port.Settings.Value()
	s := relay.Settings{
		DialTimeout: asked.DialTimeout.Or(0),
		UDPTimeout:  asked.UDPTimeout.Or(0),
		Hedge:       negativeForNone(asked.Hedge),
		Limit:       limit,

		ProxyProtocol:    asked.ProxyProtocol,
		IdleTimeout:      asked.IdleTimeout.Or(0),
		MaxConnectionAge: asked.MaxConnectionAge.Or(0),
	}
	if retries, set := asked.MaxRetries.Or(0), asked.MaxRetries.IsSet(); set && retries == 0 {
		s.MaxRetries = -1
	} else {
		s.MaxRetries = int(retries)
	}
	return s
}

// negativeForNone translates from the words of config, where 0 means never and what is not set is the proxy's to choose.
func negativeForNone(d config.Setting[time.Duration]) time.Duration {
	if d.IsSet() && d.Or(0) == 0 {
		return -1
	}
	return d.Or(0)
}

// limitOf returns what the frontends of a Service port share to bound its connections; nil if it asks for no bound.
func (p *Proxier) limitOf(port *config.ServicePort) *relay.Limit {
	asked := port.Settings.Value()
	most := asked.MaxConnections.Or(0)
	if most == 0 && asked.MaxPerBackend.Or(0) == 0 {
		if limit := p.limits[port.Name]; limit != nil {
			limit.Set(0, 0, 0) // those that wait need not any more
			delete(p.limits, port.Name)
		}
		return nil
	}
	limit := p.limits[port.Name]
	if limit == nil {
		limit = &relay.Limit{}
		p.limits[port.Name] = limit
	}
	limit.Set(int(most), int(asked.MaxQueue.Or(defaultQueue)), asked.QueueTimeout.Or(0))
	return limit
}
