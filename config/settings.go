package config

import "time"

// Settings are what the owner of a Service asks of the proxy by annotations, for all its ports alike. The zero value asks for
// nothing. A setting that does not concern a port's protocol is there all the same, and without meaning. Values are
// comparable, and immutable once handed out: the ports of a Service share one.
type Settings struct {
	// Scheduler is one of [Schedulers]; empty means the proxy's default.
	Scheduler string
	// Weights are those that the Service gives to single endpoints. [Endpoint.Weight] has them already.
	Weights Weights

	// DialTimeout is how long a connection may look for a backend that answers, all attempts together. It is not 0.
	DialTimeout Setting[time.Duration]
	// Hedge is how long a backend may stay silent before another one is dialled beside it; 0 means that none ever is.
	Hedge Setting[time.Duration]
	// MaxRetries is how many backends are dialled after the first one has failed; 0 means none.
	MaxRetries Setting[int32]
	// ProxyProtocol is the version of the PROXY protocol header, 1 or 2, that backends get to see first; 0 means none.
	ProxyProtocol uint8

	// IdleTimeout ends a TCP connection on which nothing has moved for so long; 0 means never.
	IdleTimeout Setting[time.Duration]
	// UDPTimeout ends a UDP session on which nothing has moved for so long. It is not 0.
	UDPTimeout Setting[time.Duration]
	// MaxConnectionAge ends a TCP connection that is so old, whatever moves on it; 0 means never. Ending them all at
	// once is to be avoided by whoever applies it.
	MaxConnectionAge Setting[time.Duration]
	// DrainTimeout is how long TCP connections may go on after their endpoint has left; 0 means that they end at once, not
	// set that they are left alone.
	DrainTimeout Setting[time.Duration]

	// MaxConnections and MaxPerBackend are how many connections, for UDP sessions, a Service port may have at a time on
	// this node, all backends together and each of them; 0 means no limit.
	MaxConnections, MaxPerBackend Setting[int32]
	// MaxQueue is how many TCP connections may wait while there are as many as there may be; 0 means none: those beyond
	// the limit are refused at once.
	MaxQueue Setting[int32]
	// QueueTimeout is how long each of them may wait. It is not 0.
	QueueTimeout Setting[time.Duration]
}

// Value returns the settings; all default for nil.
func (s *Settings) Value() Settings {
	if s == nil {
		return Settings{}
	}
	return *s
}

func (s *Settings) equal(o *Settings) bool { return s == o || s.Value() == o.Value() }

// Setting is a value that may be left to whoever applies it; the zero Setting is. So 0 can be a value.
type Setting[T comparable] struct {
	value T
	set   bool
}

// SetTo returns a Setting that is set.
func SetTo[T comparable](value T) Setting[T] { return Setting[T]{value, true} }

// Or returns the value, or otherwise if it is not set.
func (s Setting[T]) Or(otherwise T) T {
	if s.set {
		return s.value
	}
	return otherwise
}

// IsSet reports whether there is a value.
func (s Setting[T]) IsSet() bool { return s.set }

// Schedulers are the names that [Settings].Scheduler can have: the ways to choose among endpoints, by their short names in
// ipvsadm(8), and random and p2c (the less busy of two chosen by chance). They are not to be modified.
var Schedulers = []string{"rr", "wrr", "lc", "wlc", "sed", "nq", "random", "p2c", "sh", "dh", "mh"}

// unweighted are the schedulers to which all weights but 0 are alike.
var unweighted = []string{"rr", "lc"}
