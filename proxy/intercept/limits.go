package intercept

// Limits say what a back end cannot do of what a [State] can ask for. The zero value: nothing is missing.
type Limits struct {
	// ClientsAlike means that all clients of a VIP are treated the same: Binding.Sources and Binding.Local, and the
	// restrictions of NodePorts in State, are beyond it. What they restrict must not be listened for at all.
	ClientsAlike bool
	// OwnListeners means that nothing redirects clients from one address to another, after which connection tracking would
	// know which VIP they have dialled (SO_ORIGINAL_DST). So each frontend needs a listener of its own, unless the back end
	// is a [Sharer].
	OwnListeners bool
	// Refuses means that clients who should be dropped are refused.
	Refuses bool
}

// Limited is an [Interceptor] that cannot do everything, in the family of IPv6 or in the other. The proxy asks before it
// listens: what cannot be restricted as its owner wants must at no time be open to everybody. Such a back end still returns
// a [BindingError] for what it is asked nevertheless.
type Limited interface {
	Limits(v6 bool) Limits
}

// LimitsOf returns the limits of a back end in one family.
func LimitsOf(i Interceptor, v6 bool) Limits {
	if l, ok := i.(Limited); ok {
		return l.Limits(v6)
	}
	return Limits{}
}
