// Package balancer decides which backend of a Service port takes the next connection.
//
// A [Balancer] serves one Service port (and one traffic class of it, where classes differ). It holds the usable
// backends, hands them out in turn, keeps a client on its backend where the Service asks for ClientIP affinity, and
// counts what became of each choice. It does not dial, does not know Kubernetes, and starts no goroutine.
//
//	b := balancer.New()
//	b.Update(balancer.Config{Backends: usable, Affinity: 3 * time.Hour})
//
//	var tried []netip.AddrPort
//	for {
//		backend, ok := b.Pick(client, tried)
//		if !ok {
//			return errNoBackend
//		}
//		conn, err := dial(backend)
//		b.Report(client, backend, err)
//		if err != nil {
//			tried = append(tried, backend)
//			continue
//		}
//		defer b.Release(backend)
//		return relay(conn)
//	}
//
// # Turns
//
// Backends take turns in the order of their addresses, from a random first one: many nodes that learn of a Service at
// the same moment must not all open with the same backend. Over any run of picks the turns given to two backends differ
// by at most one, however many goroutines pick. A retry takes the next turn like any other pick, and turns of backends
// already tried are passed over for good, so the load of a dead backend spreads evenly over the others instead of
// doubling that of its neighbour.
//
// An update does not restart the round. The backend whose turn it was is still the next one, or, if it left, the first
// one after it that stayed; a set that did not change moves nothing. kube-proxy's userspace mode shuffled and
// began again, which during a rollout sends most connections to whatever comes first. Only when no backend stayed does a
// new round begin, again at a random one.
//
// # Affinity
//
// A pin (client address -> backend) is made by the first pick and ends when it has not been used for Config.Affinity,
// when its backend leaves, even if the same address returns later, or when a dial to the backend is reported failed.
// Only a successful [Balancer.Report] counts as use: a client hammering at a dead backend does not stay on it. If a
// connection is reported successful while its client has no live pin, that backend becomes the pin. A pick that names
// the pinned backend as tried gets another one, but the pin stays until a failure is reported, so that dialling a
// second backend beside a slow one does not by itself move the client.
//
// Affinity is per Service port, as in kube-proxy in all its modes, not per Service. A backend's address includes the
// port, and the endpoints of two ports of one Service can be different sets: a named target port may be missing from
// some pods, and readiness comes per EndpointSlice. A pin shared between ports would have to be broken whenever the pod
// is not behind the other port, and workloads have been written against kube-proxy's scope.
//
// The key is the bare client address: IPv4-mapped IPv6 counts as IPv4 and zones are dropped. At most 65,536 clients are
// remembered per balancer, the longest unused are forgotten first ([Balancer.Evictions] counts them), so that forged UDP
// sources cannot exhaust memory. Expiry is lazy, by the monotonic clock: no goroutine sweeps, each new pin clears away up
// to two expired ones. A changed timeout applies to existing pins at once, counted from their last use.
//
// # Concurrency
//
//   - All methods may be called from any goroutine.
//   - [Balancer.Pick] reads an immutable view through an atomic pointer. It takes no lock that [Balancer.Update] takes,
//     and allocates only to record a new pin.
//   - With affinity, a pick that finds its pin takes a read lock of the pin table; one that has to make it takes the
//     table's lock, so that the parallel first connections of one client agree on a backend. Update takes neither.
//   - Once Update has returned, picks come from the new backends only. A pick that runs beside Update sees either the old or the
//     new set, whole; such picks may give one backend a turn twice.
//   - Updates are serialised.
package balancer
