// Package relay is the data path: it accepts client connections, dials a backend for each, and copies bytes both ways.
//
// Event loops, one per processor, own listeners and connections and do without locks and without a goroutine per
// connection. The life of a connection (conn.go):
//
//	accept ── admit (wait for file descriptors) ── place (which loop) ── enter (wait for a limit's sake, queue.go)
//	                                                 │
//	  ┌──────────────────────────────────────────────▼──────────────────────────────┐
//	  │ dialling    pick ── connect ──┬─ nobody left, no time left, client left ─────┼─► reset ─► ended
//	  │               ▲               │                                              │
//	  │               └───────────────┘ refused: a backend not tried yet;            │
//	  │                                 silent: one beside it, the first has it      │
//	  └───────────────▲──────────────────────────────┬──────────────────────────────┘
//	                  │ left before a byte moved     │ connected
//	  ┌───────────────┴──────────────────────────────▼──────────────────────────────┐
//	  │ relaying    two halves, each: read ── write ── keep what there was no room   │  both ends passed on
//	  │             for; splice when bulk; an end is passed on as a FIN, and the     ├─────────────► ended
//	  │             half that is left is limited by HalfCloseTimeout                 │
//	  └──────────────────────────────────────────────┬──────────────────────────────┘
//	                                                 │ a peer has reset or vanished
//	  ┌──────────────────────────────────────────────▼──────────────────────────────┐
//	  │ resetting   what it sent before is written, and acknowledged by the other    ├─► reset ─► ended
//	  └─────────────────────────────────────────────────────────────────────────────┘
//
// A slow dial holds up its own connection only. A dial that is refused moves to another backend at once. One that is silent
// for longer than the backend's dials usually take gets a rival (hedge.go), those that come after it avoid that backend until
// its outcome is known, and it has failed after [Config.TryTimeout]. Only
// when [Config.DialTimeout] is spent, when every backend has refused, or when another dial is not allowed, does the client
// lose its connection, and then by a reset. A backend that closes or resets before a byte has moved either way counts as a
// failed dial, too (early.go). Once a byte has been sent to a backend, nothing is ever retried.
//
// Nobody's connections take all there may be: a listener that has many leaves some to the others (share.go).
//
// A listener may have [Settings] of its own: a [Limit] with a queue, limits of a connection's life (life.go), a header that
// introduces clients to backends.
//
// The end of one direction is passed on as a FIN and the other direction lives on, as long as bytes move at least every
// [Config.HalfCloseTimeout]. A reset is passed on as a reset, after the bytes that came before it. A connection
// whose peer has vanished ends by TCP keep-alive or by unanswered retransmissions.
//
//	r := relay.New(relay.Config{})
//	l, err := r.Listen(netip.MustParseAddrPort("0.0.0.0:61000"), "default/web:http/TCP", balancer)
//	l.Serve()
//	l.SetOpen(false)        // no usable backend: the kernel refuses clients, the port stays ours
//	l.SetOpen(true)
//	l.Close()               // live connections go on
//	s, err := r.ListenShared(addr) // one socket for many: shared.go
//	r.Shutdown(ctx)         // stop accepting, wait for the rest until ctx ends, then reset it
//
// What makes it cheap, most first (measured): system calls that cannot block are made raw, without telling the scheduler;
// a loop has a thread, and waits in epoll_wait(2) (poller.go); a short read is not followed by another, as it has emptied the
// receive queue (half.go); a socket is registered once, edge-triggered, and gets only the options that it cannot inherit,
// most of them when it has lasted for a second; nothing is allocated per read, nor per connection once there are
// records to use again. Tried without gain: leaving out the last ACK of the backend's
// handshake (TCP_QUICKACK), arming keep-alive only on connections that last.
//
// UDP has no connections, so there are sessions instead: a client address, the address it sent to, and a connected socket
// towards one backend. It has loops of its own:
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
