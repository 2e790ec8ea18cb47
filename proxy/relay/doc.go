// Package relay is the data path: it accepts client connections, dials a backend for each, and copies bytes both ways.
//
// The life of a connection:
//
//	accept ── admit (wait for file descriptors) ── pick ── dial ──┬── copy both ways ── close
//	                                                ▲             │ refused, silent
//	                                                └─────────────┘ a backend not tried yet, until the budget is spent
//
// The accept loop does nothing but accept: a slow dial holds up its own connection only. A dial that is refused moves to
// another backend at once, one that stays silent after [Config.TryTimeout]; only when [Config.DialTimeout] is spent, or
// every backend has refused, does the client lose its connection, and then by a reset. Once a backend is connected,
// nothing is ever retried.
//
// The end of one direction is passed on as a FIN and the other direction lives on, as long as bytes move at least every
// [Config.HalfCloseTimeout]. A reset is passed on as a reset, after the bytes that came before it. A connection
// whose peer has vanished ends by TCP keep-alive or TCP_USER_TIMEOUT.
//
//	r := relay.New(relay.Config{})
//	l, err := r.Listen(netip.MustParseAddrPort("0.0.0.0:61000"), "default/web:http/TCP", balancer)
//	l.Serve()
//	l.SetOpen(false)        // no usable backend: the kernel refuses clients, the port stays ours
//	l.SetOpen(true)
//	l.Close()               // live connections go on
//	r.Shutdown(ctx)         // stop accepting, wait for the rest until ctx ends, then reset it
//
// UDP has no connections, so there are sessions instead: a client address, the address it sent to, and a connected socket
// towards one backend. Event loops, one per processor, own listeners and sessions and do without locks:
//
//	recvmmsg ── session? ──┬─────────────────────────► send to the backend ◄── a copy of what was not answered yet
//	                       └─ no: pick, socket, connect ─┘      │        ▲
//	sendmmsg ◄── replies, from the address that was asked ◄── recvmmsg   └── ICMP: another backend gets it
//
// A session ends by being idle for [Config.UDPTimeout], by its backend's leaving, or, when there are too many, by being
// the one that has been idle for longest.
//
// What it does not do: choose backends ([Balancer]), know Services, or write rules.
//
// A Relay and its Listeners may be used by several goroutines. The behaviour is pinned by the black-box suite in package
// relaytest, which any other engine has to pass.
package relay
