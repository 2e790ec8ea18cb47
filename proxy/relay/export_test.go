package relay

// NewGenerous returns a Relay whose loops give every connection away that they can, at each of its events.
func NewGenerous(cfg Config) *Relay {
	r := New(cfg)
	r.restless = 0
	return r
}
